"""`stream`: a run's files on their way to the console.

Bytes: 64 MiB of output.log from the daemon over `attach` and the wire (JSON
lines, base64) through ``Link.stream``, against ``cat`` of the same file read
from a pipe by asyncio, which is the least that any transport could do.
Events: lines decoded into values and folded into a run's standing, against
``json.loads`` of the same lines.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.runs import Exit, write_value
from eagle3_console.link import Link

from . import places, samples
from .measure import Benchmark, Comparison, Result, Say, take_turns

SIZE = 64 << 20
EVENTS = 20_000


async def run(rounds: int, say: Say) -> list[Result]:
    return [await _bytes(rounds, say), await _events(rounds, say)]


async def _bytes(rounds: int, say: Say) -> Result:
    with places.own_home():
        folder = places.run_folder(1)
        write_value(folder.path / "run.json", places.record(1, places.profile(folder.path)))
        folder.events.touch()
        folder.output.write_bytes(samples.log_bytes(SIZE))
        folder.write_exit(Exit("completed", time.time(), 0))
        async with places.linked() as link:
            values = await take_turns(
                {
                    "ours": lambda: _through_link(link, folder.run),
                    "peer": lambda: _through_cat(folder.output),
                },
                rounds,
                lambda text: say(f"bytes, {text}"),
            )
    return Comparison(
        "stream.bytes",
        "64 MiB of output.log through daemon, attach and Link.stream",
        "cat of the file through a pipe read by asyncio",
        "MB/s",
        "higher",
        values["ours"],
        values["peer"],
    )


async def _through_link(link: Link, run_id: str) -> float:
    began, size = time.perf_counter(), 0
    async for piece in link.stream(run_id, "output"):
        size += len(piece.data)
    return _rate(size, began)


async def _through_cat(path: Path) -> float:
    began, size = time.perf_counter(), 0
    process = await asyncio.create_subprocess_exec(
        "cat", str(path), stdout=asyncio.subprocess.PIPE, limit=256 * 1024
    )
    assert process.stdout is not None
    while data := await process.stdout.read(65536):
        size += len(data)
    await process.wait()
    return _rate(size, began)


def _rate(size: int, began: float) -> float:
    seconds = time.perf_counter() - began
    if size != SIZE:
        raise RuntimeError(f"{size} of {SIZE} bytes arrived")
    return size / seconds / 1e6


async def _events(rounds: int, say: Say) -> Result:
    lines = samples.event_lines(EVENTS)

    async def ours() -> float:
        began, standing = time.perf_counter(), Standing()
        for line in lines:
            event = decode_event(line)
            assert event is not None
            standing = fold(standing, event)
        return len(lines) / (time.perf_counter() - began)

    async def peer() -> float:
        began = time.perf_counter()
        for line in lines:
            json.loads(line)
        return len(lines) / (time.perf_counter() - began)

    values = await take_turns(
        {"ours": ours, "peer": peer}, rounds, lambda text: say(f"events, {text}")
    )
    return Comparison(
        "stream.events",
        "lines of events.jsonl decoded into checked values and folded",
        "json.loads of the same lines",
        "lines/s",
        "higher",
        values["ours"],
        values["peer"],
    )


BENCHMARK = Benchmark(
    name="stream",
    measures="bytes of output.log and lines of events.jsonl on their way to the screen",
    peer="cat through a pipe; json.loads",
    why="opening a big log, and reconnecting to a long run, wait for this",
    rounds=7,
    run=run,
)
