"""`capture`: what hooks, copies, checks, files, hashes and syncs cost a run.

The worker as the supervisor starts it (engine transformers, the demo's model,
four layers, data_{i}.pt) against ``forward.py``: the same decoder over the
same token rows in the same interpreter, without hooks or files.
Extraction: from the first sample to the last file on the disk, by the run's
own events, against the peer's loop.  Whole: from process start to exit of
both, imports and load included.

Both sides compute with one thread: with others on the same cores, OpenMP's
spinning barriers cost up to 20 times the work, and would be all that is seen.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.events import Progress, Stage
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    Profile,
)
from eagle3_agent.runs import RunFolder, write_value
from eagle3_console import demo

from . import places
from .measure import Benchmark, Comparison, LeftOut, Result, Say, take_turns

SAMPLES = 16
AGENT = Path(__file__).resolve().parents[1] / "agent"
FORWARD = Path(__file__).with_name("forward.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def rows(count: int) -> list[list[int]]:
    """Token ids, 128 to 383 a row: a dense model's cost depends on their number alone."""
    lengths = [128 + (i * 89) % 256 for i in range(count)]
    return [[(i * 7919 + j * j * 31 + j) % 49_000 for j in range(n)] for i, n in enumerate(lengths)]


async def run(rounds: int, say: Say) -> list[Result]:
    files = demo.files()
    if not (files.root / "model.ready").exists():
        why = "the demo's environment is missing (make it: eagle3-console demo --prepare-only)"
        return [LeftOut("capture", why)]
    data = rows(SAMPLES)
    tokens = sum(map(len, data))
    with places.own_home() as home:
        path = home / "rows.jsonl"
        path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in data))
        seconds: dict[str, list[float]] = {"ours": [], "peer": []}
        numbers = itertools.count(1)

        async def ours() -> float:
            began = time.perf_counter()
            folder = await _worker(next(numbers), _profile(files, path, home))
            seconds["ours"].append(time.perf_counter() - began)
            return tokens / _extraction(folder, tokens)

        async def peer() -> float:
            began = time.perf_counter()
            told = await _output(str(files.python), str(FORWARD), str(files.model), str(path))
            seconds["peer"].append(time.perf_counter() - began)
            return tokens / float(told["seconds"])

        values = await take_turns({"ours": ours, "peer": peer}, rounds, say)
    words = f"{SAMPLES} samples, {tokens} tokens"
    return [
        Comparison(
            "capture.extraction",
            f"{words} captured at 4 layers, written, hashed and synced",
            "the decoder's forward over the same rows",
            "tokens/s",
            "higher",
            values["ours"],
            values["peer"],
        ),
        Comparison(
            "capture.whole",
            "the worker from start to exit, imports and load included",
            "the forward's script from start to exit",
            "s",
            "lower",
            tuple(seconds["ours"][-rounds:]),
            tuple(seconds["peer"][-rounds:]),
        ),
    ]


def _profile(files: demo.DemoFiles, data: Path, home: Path) -> Profile:
    asked = places.profile(home)
    return replace(
        asked,
        host=HostSection(python=str(files.python)),
        model=ModelSection(path=str(files.model)),
        capture=CaptureSection(demo.LAYERS),
        data=DataSection(path=str(data)),
        engine=EngineSection("transformers"),
    )


async def _worker(number: int, asked: Profile) -> RunFolder:
    """A run's worker on its own, to its end, into an output folder of its own."""
    folder = places.run_folder(number)
    out = replace(asked.output, dir=str(Path(asked.output.dir) / f"out-{number}"))
    write_value(folder.path / "run.json", places.record(number, replace(asked, output=out)))
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(AGENT), "PYTHONUNBUFFERED": "1"}
    argv = [asked.host.python, "-m", "eagle3_agent.worker", "run", str(folder.path)]
    with folder.output.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder.path,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    async with places.ending(process):
        status = await process.wait()
    if status != 0:
        tail = folder.output.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the worker failed:\n{tail}")
    return folder


def _extraction(folder: RunFolder, tokens: int) -> float:
    """Seconds of the extract stage, which ends when the last file is on the disk."""
    events = [event for _, event in folder.read_events()]
    times = {(e.name, e.status): e.t for e in events if isinstance(e, Stage)}
    written = [e.tokens for e in events if isinstance(e, Progress)][-1]
    if written != tokens:
        raise RuntimeError(f"{written} of {tokens} tokens were written")
    return times["extract", "done"] - times["extract", "start"]


async def _output(*argv: str) -> dict[str, Any]:
    """The JSON object that a program prints."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **ONE_THREAD},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with places.ending(process):
        out, complaints = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{argv[1]} failed:\n{complaints.decode(errors='replace')[-2000:]}")
    told: dict[str, Any] = json.loads(out)
    return told


BENCHMARK = Benchmark(
    name="capture",
    measures="tokens a second of a whole worker run, on the CPU with the demo's model",
    peer="the plain forward of the same model over the same token ids",
    why="what the console adds to hours of extraction",
    rounds=5,
    run=run,
)
