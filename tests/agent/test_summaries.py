"""The short way of folding a run's events is the long way's result."""

from __future__ import annotations

from pathlib import Path

from eagle3_agent.protocol import encode
from eagle3_agent.protocol.events import (
    Ended,
    Event,
    Failure,
    Load,
    Note,
    Plan,
    Progress,
    Skipped,
    Stage,
    Throughput,
    Wrote,
)
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.runs import RunFolder

EVENTS: list[Event] = [
    Stage(1.0, "load", "start"),
    *[Load(1.0 + n, n, 4) for n in range(5)],
    Stage(7.0, "load", "done"),
    Stage(7.0, "extract", "start"),
    Plan(7.5, 100, 1000, 5000),
    *[Progress(8.0 + n, n, 100, 0, 10 * n, 50 * n, 9.0, 2.0, 100.0 - n) for n in range(30)],
    *[Wrote(40.0 + n, n, f"data_{n}.pt", 10, 50) for n in range(9)],
    Progress(60.0, 31, 100, 1, 310, 1550),
    *[Throughput(60.0 + n, n, 9, 1, n, 0, 0, 0, 0, 0, 1.0, 2, 8, 64) for n in (0.25, 0.5)],
    Skipped(61.0, 31, "empty"),
    Wrote(62.0, 32, "data_32.pt", 10, 50),
    Progress(63.0, 32, 100, 1, 320, 1600),
    Note(64.0, "warning", "slow disk"),
    Failure(65.0, ErrorInfo("KeyError", "")),
    Failure(66.0, ErrorInfo("RuntimeError", "later")),
    Ended(67.0, "failed", 1),
]


def test_both_ways_agree_wherever_reading_stops(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    long = Standing()
    short, offset = Standing(), 0
    for count, event in enumerate(EVENTS):
        long = fold(long, event)
        with open(folder.events, "ab") as file:
            file.write(encode(event))
            if count % 3 == 0:
                file.write(b'{"type":"FromTheFuture","t":1}\n{"type":"Progress","t"')
                file.flush()
                short, offset = folder.fold_on(short, offset)
                assert short == long
                file.write(b":broken\n")
        assert folder.standing() == long
    assert folder.fold_on(short, offset) == (long, folder.events.stat().st_size)


def test_a_line_torn_by_a_full_disk_takes_nothing_with_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    whole = encode(Progress(1.0, 5, 9, 0, 50, 500))
    folder.events.write_bytes(whole + whole[:30] + b"\n")
    assert folder.standing().done == 5


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    line = encode(Progress(1.0, 5, 9, 0, 50, 500))
    folder.events.write_bytes(line[:20])
    assert folder.fold_on(Standing(), 0) == (Standing(), 0)
    folder.events.write_bytes(line)
    standing, offset = folder.fold_on(Standing(), 0)
    assert standing.done == 5
    assert offset == len(line)
