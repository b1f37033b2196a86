"""Speed, window and ETA as arithmetic; the reporter's pace with a real thread."""

from __future__ import annotations

import threading
import time

import pytest

from eagle3_agent.protocol.events import Event, Progress, Skipped, Wrote
from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.progress import Meter, Reporter

ENTRY = Entry(
    index=4,
    file="data_4.pt",
    tokens=100,
    bytes=1000,
    sha256="",
    dtype="bfloat16",
    layers=2,
    hidden=8,
    row="",
    mask="",
)


def test_speed_is_of_the_window_and_eta_of_the_whole_stage() -> None:
    meter = Meter(total=10, tokens=1000, reused=3, skipped=1)
    before = meter.read(5.0, 0.0)
    assert (before.done, before.skipped, before.total) == (3, 1, 10)
    assert (before.tokens_per_second, before.eta) == (None, None)
    meter.begin(100.0)
    for second in range(1, 21):
        meter.add(10 if second <= 10 else 20, 7)
        last = meter.read(100.0 + second, 0.0)
    assert last.tokens == 300
    assert last.bytes == 140
    assert last.done == 23
    assert last.window == pytest.approx(10.0)
    assert last.tokens_per_second == pytest.approx(20.0)
    assert last.eta == pytest.approx(700 / (300 / 20))


def test_a_stall_shows_as_falling_speed() -> None:
    meter = Meter(total=2, tokens=200, reused=0, skipped=0)
    meter.begin(0.0)
    meter.add(100, 1)
    assert meter.read(1.0, 0.0).tokens_per_second == pytest.approx(100.0)
    assert meter.read(10.0, 0.0).tokens_per_second == pytest.approx(10.0)
    assert meter.read(30.0, 0.0).tokens_per_second == pytest.approx(0.0)


def test_at_most_four_a_second_and_the_last_one_is_exact() -> None:
    told: list[Event] = []
    reporter = Reporter(Meter(100_000, 10_000_000, reused=0, skipped=0), told.append)
    began = time.monotonic()
    reporter.begin()
    count = 0
    while time.monotonic() - began < 1.2:
        reporter.wrote(ENTRY)
        count += 1
    reporter.skipped(9, "why")
    reporter.finish()
    seconds = time.monotonic() - began
    figures = [e for e in told if isinstance(e, Progress)]
    assert 3 <= len(figures) <= 4 * seconds + 1
    assert (figures[-1].done, figures[-1].skipped) == (count, 1)
    assert figures[-1].tokens == 100 * count
    assert [(e.index, e.reason) for e in told if isinstance(e, Skipped)] == [(9, "why")]
    wrote = [e for e in told if isinstance(e, Wrote)]
    assert len(wrote) <= len(figures)
    assert (wrote[-1].shape, wrote[-1].layers) == ((100, 8), 2)


def test_events_that_cannot_be_written_end_the_run() -> None:
    failed = threading.Event()

    def emit(event: Event) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    reporter = Reporter(Meter(1, 1, reused=0, skipped=0), emit)
    reporter.begin()
    reporter.wrote(ENTRY)
    assert failed.wait(10)
    with pytest.raises(OSError, match="No space left"):
        reporter.finish()
    with pytest.raises(OSError, match="No space left"):
        reporter.check()
