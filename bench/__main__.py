"""The command line: ``python -m bench [--list] [--only NAME]... [--rounds N] [--json FILE]``.

Exit status: 0 measured, 1 a benchmark or the JSON file failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

from eagle3_console.errors import ConsoleError

from . import attach, capture, extract, history, log, report, stream, writing
from .measure import Benchmark, Result

ALL: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (stream, attach, capture, writing, extract, log, history)
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench", description="Ratios against named peers, measured in turns."
    )
    made.add_argument("--list", action="store_true", help="say what there is, and end")
    made.add_argument("--only", action="append", choices=list(ALL), help="may be repeated")
    made.add_argument("--rounds", type=_positive, help="repetitions, in place of each one's own")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    return made


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def listing() -> list[str]:
    """What ``--list`` prints."""
    return [
        line
        for b in ALL.values()
        for line in (
            f"{b.name}: {b.measures}",
            f"    peer    {b.peer}",
            f"    why     {b.why}",
            f"    rounds  {b.rounds}, after one to warm up",
        )
    ]


def main(argv: list[str] | None = None) -> int:
    asked = parser().parse_args(argv)
    if asked.list:
        print("\n".join(listing()))
        return 0
    # both end the main task, so that children are ended and folders removed on the way out; a
    # shell's background job starts with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return _run(asked)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _run(asked: argparse.Namespace) -> int:
    started, seen = time.time(), report.machine()
    print("\n".join(report.heading(seen)), flush=True)
    results: list[Result] = []
    status = 0
    for name in asked.only or ALL:
        try:
            found = asyncio.run(_measure(ALL[name], asked.rounds))
        except (ConsoleError, OSError, RuntimeError) as error:
            told = error.problem if isinstance(error, ConsoleError) else None
            _say(f"{name} failed: {f'{told.title}. {told.happened}' if told else error}")
            status = 1
            continue
        results += found
        for result in found:
            print("\n".join(report.lines(result)), flush=True)
    if asked.json is not None:
        try:
            report.write(asked.json, report.document(results, seen, started))
        except OSError as problem:
            _say(f"{asked.json} cannot be written: {problem.strerror}")
            status = 1
    return status


async def _measure(benchmark: Benchmark, rounds: int | None) -> list[Result]:
    return await benchmark.run(
        rounds or benchmark.rounds, lambda text: _say(f"{benchmark.name}: {text}")
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
