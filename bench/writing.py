"""`writing`: what the worker's writers reach, and what they cost the thread that feeds them.

A thread as busy in Python as a model's step is, and beside it the pool, fed so that no writer
waits.  Against threads of the same process over the same memory, which is how states are written
that no other process sees; against the busy thread alone; and against writers that check, hash
and tell nothing, in a process without anything else.

With the real work a machine of few cores shows how writers share them with the step.  What the
interpreter's lock costs where cores are enough is measured with waits in place of the work
(``writing_waits``).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_console import demo

from . import places
from .measure import Benchmark, Comparison, LeftOut, Result, Say, take_turns

ROOT = Path(__file__).resolve().parents[1]

#: Of states with 4 layers of 2048 in bfloat16: 16 MiB a sample.
TOKENS = 1024

SECONDS = 3.0

#: Writers that work, and that wait in place of working.
REAL, WAITING = 2, 8


async def run(rounds: int, say: Say) -> list[Result]:
    files = demo.files()
    if not (files.root / "model.ready").exists():
        why = "the demo's environment is missing (make it: eagle3-console demo --prepare-only)"
        return [LeftOut("writing", why)]
    asked: dict[str, dict[str, Any]] = {
        "main": {"mode": "main"},
        "plain": {"mode": "plain", "writers": REAL},
    }
    for form in ("processes", "threads"):
        asked[f"{form} work"] = _pool(form, "real", REAL)
        asked[f"{form} wait"] = _pool(form, "waits", WAITING)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in asked}

    def side(name: str) -> Any:
        async def measured() -> float:
            found[name].append(await _side(str(files.python), asked[name]))
            return 0.0

        return measured

    await take_turns({name: side(name) for name in asked}, rounds, say)
    last = {name: values[-rounds:] for name, values in found.items()}
    return [
        _compared("durable.plain", "bytes", last, "processes work", "plain", REAL),
        _compared("durable.threads", "bytes", last, "processes work", "threads work", REAL),
        _compared("steps.threads", "steps", last, "processes work", "threads work", REAL),
        _compared("waits.steps.threads", "steps", last, "processes wait", "threads wait", WAITING),
        _compared("waits.steps.alone", "steps", last, "processes wait", "main", WAITING),
        _compared("waits.bytes.threads", "bytes", last, "processes wait", "threads wait", WAITING),
    ]


_WORDS = {
    "main": "the busy thread alone",
    "plain": "writers that only write, sync and rename, in a process of their own",
    "processes work": "a busy thread and writers that are processes",
    "threads work": "a busy thread and writers that are threads",
    "processes wait": "a busy thread and processes that wait for as long as the work takes",
    "threads wait": "a busy thread and threads that wait for as long as the work takes",
}


def _pool(form: str, work: str, writers: int) -> dict[str, Any]:
    return {"mode": "pool", "form": form, "work": work, "writers": writers}


def _compared(
    name: str,
    figure: str,
    found: Mapping[str, list[dict[str, float]]],
    ours: str,
    peer: str,
    writers: int,
) -> Comparison:
    scale, unit = (1e6, "MB/s") if figure == "bytes" else (1.0, "steps/s")
    return Comparison(
        f"writing.{name}",
        f"{_WORDS[ours]}, {writers} writers",
        _WORDS[peer],
        unit,
        "higher",
        tuple(values[figure] / scale for values in found[ours]),
        tuple(values[figure] / scale for values in found[peer]),
    )


async def _side(python: str, asked: Mapping[str, Any]) -> dict[str, float]:
    """Its figures, by ``writing_side``; its files lie in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="eagle3-bench-") as folder:
        out = Path(folder) / "out"
        out.mkdir()
        whole = {**asked, "folder": str(out), "tokens": TOKENS, "seconds": SECONDS}
        paths = os.pathsep.join((str(ROOT), str(ROOT / "agent")))
        process = await asyncio.create_subprocess_exec(
            *(python, "-m", "bench.writing_side", json.dumps(whole)),
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with places.ending(process):
            out_bytes, complaints = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{asked} failed:\n{complaints.decode(errors='replace')[-2000:]}")
    told: dict[str, float] = json.loads(out_bytes)
    return told


BENCHMARK = Benchmark(
    name="writing",
    measures="files of states written, synced and hashed beside a busy thread, and that thread",
    peer="writers that are threads; writers that only write; the busy thread alone",
    why="with a small model the disk is the limit, and the model's step must not wait for writers",
    rounds=3,
    run=run,
)
