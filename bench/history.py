"""`history`: the list of 2,000 runs.

Cold: no summary is cached, so every events.jsonl (60 lines) is folded and the
cache written; once in the life of a run.  Warm: a freshly started agent with
all caches there.  Asked: a running agent answers ListRuns over the wire to the
console, values and all.  The peer reads the same folders with ``os.scandir``
and ``json.loads`` of each run.json, which tells neither state nor figures.
Files are in the page cache for all of them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from eagle3_agent import paths
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.messages import ListRuns, Runs
from eagle3_agent.runs import Exit
from eagle3_agent.summaries import Index
from eagle3_console.link import Link

from . import places, samples
from .measure import Benchmark, Comparison, Result, Say, take_turns

RUNS = 2_000
EVENTS = 60


async def run(rounds: int, say: Say) -> list[Result]:
    with places.own_home() as home:
        say(f"making {RUNS} run folders")
        _make(home)

        async def cold() -> float:
            for cache in paths.runs_dir().glob("*/summary.json"):
                cache.unlink()
            return _index()

        async def warm() -> float:
            return _index()

        async def peer() -> float:
            return _scan(paths.runs_dir())

        _index()  # the daemon below finds its caches
        async with places.linked() as link:
            values = await take_turns(
                {"cold": cold, "warm": warm, "asked": lambda: _ask(link), "peer": peer},
                rounds,
                say,
            )
    ours = {
        "cold": "a fresh agent folds 60 events of each run and writes the caches",
        "warm": "a fresh agent reads its caches",
        "asked": "a running agent lists them all to the console, over the wire",
    }
    return [
        Comparison(
            f"history.{name}",
            f"{RUNS} runs: {what}",
            "os.scandir and json.loads of each run.json",
            "s",
            "lower",
            values[name],
            values["peer"],
        )
        for name, what in ours.items()
    ]


def _make(home: Path) -> None:
    events = b"".join(samples.event_lines(EVENTS))
    for number in range(1, RUNS + 1):
        folder = places.run_folder(number)
        asked = places.profile(home / f"out-{number}")
        (folder.path / "run.json").write_text(dumps(places.record(number, asked)))
        folder.events.write_bytes(events)
        (folder.path / "exit.json").write_text(dumps(Exit("completed", 1.7e9 + number, 0)))


def _index() -> float:
    began = time.perf_counter()
    index = Index()
    index.refresh()
    found = index.summaries()
    seconds = time.perf_counter() - began
    _complete(len(found))
    return seconds


def _scan(root: Path) -> float:
    began = time.perf_counter()
    with os.scandir(root) as entries:
        found = [
            json.loads(Path(entry.path, "run.json").read_bytes())
            for entry in entries
            if entry.name.isdecimal()
        ]
    seconds = time.perf_counter() - began
    _complete(len(found))
    return seconds


async def _ask(link: Link) -> float:
    began = time.perf_counter()
    reply = await link.ask(ListRuns(0))
    assert isinstance(reply, Runs)
    found = len(reply.runs)
    while reply.older:
        reply = await link.ask(ListRuns(0, before=reply.runs[0].number))
        assert isinstance(reply, Runs)
        found += len(reply.runs)
    seconds = time.perf_counter() - began
    _complete(found)
    return seconds


def _complete(found: int) -> None:
    if found != RUNS:
        raise RuntimeError(f"{found} of {RUNS} runs were listed")


BENCHMARK = Benchmark(
    name="history",
    measures="listing 2,000 runs: cold, warm, and asked over the wire",
    peer="os.scandir and json.loads of each run.json",
    why="the first screen waits for it; a home may hold years of runs",
    rounds=3,
    run=run,
)
