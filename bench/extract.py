"""`extract`: ways to extract hidden states, against plain generation of the same tokens.

Real vLLM on the CPU, a small random model in float32, four layers.  Plain is
``LLM.generate`` with one token, which keeps nothing.  Each side loads once in a process
of its own (``bench/extraction``); the sides of one vLLM release take turns, and whoever
is not on turn is stopped.  All compute with one thread, as in ``capture``.

On a GPU host the same sides are measured by ``python -m bench.extract_gpu``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import places
from .extraction import models, spec, turns
from .measure import Benchmark, Comparison, LeftOut, Result, Say, take_turns

ROOT = Path(__file__).resolve().parents[1]
MODEL = "small"
SAMPLES, SHORTEST, LONGEST = 24, 64, 256
#: Several steps a round, so that capture, copies and writing overlap with computing.
STEP_TOKENS = 1024
#: For the memory that many samples take.
MANY, MANY_LONGEST = 20_000, 12

#: vLLM on a CPU: no spinning barriers on cores that others use too.
CPU = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
#: Seconds for a load or a round on a busy machine.
LIMIT = 400.0


@dataclass(frozen=True)
class Group:
    """Sides of one vLLM release, and what they are in words."""

    release: str
    sides: Mapping[str, str]

    @property
    def python(self) -> Path:
        return ROOT / ".venvs" / f"vllm-{self.release}" / "bin" / "python"


GROUPS = (
    Group(
        "0.16",
        {
            "plain": "LLM.generate(max_tokens=1), which keeps nothing",
            "vllm": "engine vllm: four layers captured, written, hashed and synced",
            "speculators": "engine speculators: the same, through speculators 0.3.0",
            "library": "speculators 0.3.0's own loop, patched only to run",
            "transformers": "engine transformers: the same, a sample at a time",
            "disk": "files of the same sizes by as many threads: write, fsync, rename",
            "matmul": "products of float32 matrices",
        },
    ),
    Group(
        "0.32",
        {
            "plain": "LLM.generate(max_tokens=1), which keeps nothing",
            "vllm": "engine vllm: four layers captured, written, hashed and synced",
            "connector": "vLLM's extract_hidden_states and its connector, as speculators 0.9 has",
        },
    ),
)


async def run(rounds: int, say: Say) -> list[Result]:
    results: list[Result] = []
    for group in GROUPS:
        if not os.access(group.python, os.X_OK):
            why = f"vLLM {group.release} is not here (make it: make vllm-env)"
            results.append(LeftOut(f"extract.{group.release}", why))
            continue
        with places.own_home() as home:
            results += await _group(group, home, rounds, say)
    return results


async def _group(group: Group, home: Path, rounds: int, say: Say) -> list[Result]:
    shape = models.SHAPES[MODEL]
    data = spec.made_up(SAMPLES, SHORTEST, LONGEST, shape.vocab)
    base = await _made(group, home, MODEL, data)
    results: list[Result] = []
    with _started(group, base, home, results, say) as running:
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
        values = await take_turns(
            {name: _turn(one, seen[name]) for name, one in running.items()}, rounds, say
        )
    last = {name: found[-rounds:] for name, found in seen.items()}
    results += list(_comparisons(group, values, last, shape.flops([len(r) for r in data])))
    if "vllm" in running:
        results.append(await _many(group, home, say))
    return results


async def _made(group: Group, home: Path, name: str, data: list[list[int]]) -> spec.Spec:
    """A spec without a side, its model and rows in place."""
    folder, rows = home / f"model-{name}", home / f"rows-{name}.jsonl"
    spec.write_rows(rows, data)
    argv = [str(group.python), "-m", "bench.extraction.models", name, str(folder)]
    env = {**os.environ, **CPU, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=home, stdout=asyncio.subprocess.DEVNULL
    )
    async with places.ending(process):
        if await process.wait() != 0:
            raise RuntimeError(f"the model could not be made: {' '.join(argv)}")
    layers = models.SHAPES[name].layers
    return spec.Spec(
        side="",
        model=str(folder),
        data=str(rows),
        out="",
        layers=(min(2, layers - 1), layers // 2, layers - 3, layers - 1),
        longest=max(map(len, data)),
        dtype="float32",
        tokens=STEP_TOKENS,
    )


@contextmanager
def _started(
    group: Group, base: spec.Spec, home: Path, results: list[Result], say: Say
) -> Iterator[dict[str, turns.Running]]:
    """The group's sides that load, each stopped; one that does not is left out with its reason."""
    running: dict[str, turns.Running] = {}
    try:
        for name in group.sides:
            say(f"loading {name} on vLLM {group.release}")
            made = replace(base, side=name, out=str(home / f"files-{name}"))
            one = turns.Running(str(group.python), made, home / f"{name}.log", CPU)
            try:
                one.ready(LIMIT)
            except turns.SideFailed as error:
                one.end()
                results.append(LeftOut(f"extract.{group.release}.{name}", str(error)[:300]))
                continue
            one.pause()
            running[name] = one
        yield running
    finally:
        for one in running.values():
            one.end()


def _turn(one: turns.Running, seen: list[dict[str, Any]]) -> Callable[[], Any]:
    async def turn() -> float:
        found = await asyncio.to_thread(one.round, LIMIT)
        one.pause()
        seen.append(found)
        return float(found["tokens"] / found["seconds"])

    return turn


def _comparisons(
    group: Group,
    values: dict[str, tuple[float, ...]],
    seen: dict[str, list[dict[str, Any]]],
    flops: int,
) -> Iterator[Comparison]:
    """Every side against plain generation; the disk's rate and the processor's beside it."""
    at = f"extract.{group.release}"

    def told(name: str, ours: str, peer: str, mine: Any, other: Any, unit: str) -> Comparison:
        words = group.sides
        return Comparison(
            f"{at}.{name}", words[ours], words[peer], unit, "higher", tuple(mine), tuple(other)
        )

    def durable(side: str) -> list[float]:
        return [found["tokens"] / found["durable"] for found in seen[side]]

    def busy(side: str) -> list[float]:
        return [found["tokens"] / found["cpu"] for found in seen[side]]

    for side in group.sides:
        if side in ("plain", "disk", "matmul") or not {side, "plain"} <= values.keys():
            continue
        plain = values["plain"]
        yield told(f"{side}.generated", side, "plain", values[side], plain, "tokens/s")
        yield told(f"{side}.durable", side, "plain", durable(side), plain, "tokens/s")
        # other work on the same cores hides in the clock's time, and hardly in the processor's
        yield told(f"{side}.cpu", side, "plain", busy(side), busy("plain"), "tokens/processor-s")
    if {"vllm", "disk"} <= values.keys():
        ours = [found["bytes"] / found["durable"] / 1e6 for found in seen["vllm"]]
        disk = [found["bytes"] / found["durable"] / 1e6 for found in seen["disk"]]
        yield told("vllm.disk", "vllm", "disk", ours, disk, "MB/s")
    if {"vllm", "matmul"} <= values.keys():
        ours = [flops / found["seconds"] / 1e9 for found in seen["vllm"]]
        most = [found["extra"]["flops"] / 1e9 for found in seen["matmul"]]
        yield told("vllm.mfu", "vllm", "matmul", ours, most, "GFLOP/s")


async def _many(group: Group, home: Path, say: Say) -> Result:
    """Resident memory at the end of very many samples against that after a tenth of them."""
    say(f"{MANY} samples, for the memory that they take")
    name = f"extract.{group.release}.resident"
    data = spec.made_up(MANY, 4, MANY_LONGEST, models.SHAPES["tiny"].vocab)
    base = await _made(group, home, "tiny", data)
    # a small bound on what is on its way, or filling it would look like growing
    made = replace(
        base, side="vllm", out=str(home / "files-many"), watch_memory=True, buffer=16 << 20
    )
    one = turns.Running(str(group.python), made, home / "many.log", CPU)
    try:
        await asyncio.to_thread(one.ready, LIMIT)
        found = await asyncio.to_thread(one.round, 4 * LIMIT)
    except turns.SideFailed as error:
        return LeftOut(name, str(error)[:300])
    finally:
        one.end()
    resident = found["extra"]["resident"]
    return Comparison(
        name,
        f"resident memory at the end of {MANY} samples",
        "after a tenth of them",
        "MB",
        "lower",
        (resident["end"] / 1e6,),
        (resident["after a tenth"] / 1e6,),
    )


BENCHMARK = Benchmark(
    name="extract",
    measures="tokens a second of every way to extract, on real vLLM on the CPU",
    peer="LLM.generate(max_tokens=1) over the same tokens, which keeps nothing",
    why="what an extraction costs beyond computing, and what the alternatives cost",
    rounds=3,
    run=run,
)
