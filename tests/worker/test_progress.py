"""Speed, window and ETA as arithmetic; the reporter's pace with a real thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Event, Progress, Skipped, Throughput, Wrote
from eagle3_agent.worker.engines.base import Sample
from eagle3_agent.worker.errors import CaptureError, OutputError
from eagle3_agent.worker.feed import Awaited
from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.progress import Bounds, Meter, Reporter
from eagle3_agent.worker.writing.ledger import (
    Fault,
    Follower,
    Ledger,
    Measured,
    Rejected,
    Written,
)

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


class Told:
    """A reporter over a real ledger, with what it emitted."""

    def __init__(self, root: Path, asked: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.events: list[Event] = []
        self.ledger = Ledger(root / "samples.jsonl")
        awaited = Awaited("fake", asked)
        for _ in awaited.ask(Sample(index, [1], [1]) for index in range(asked)):
            pass
        self.awaited = awaited
        self.reporter = Reporter(
            Meter(asked, 100 * asked, reused=0, skipped=0),
            Follower(root / "samples.jsonl"),
            awaited,
            Bounds(threads=3, buffer_bytes=500, token_bytes=2**20),
            self.events.append,
            clock,
        )

    def wrote(self, index: int) -> None:
        self.ledger.append(Written(replace(ENTRY, index=index)))


def test_at_most_four_a_second_and_the_last_one_is_exact(tmp_path: Path) -> None:
    told = Told(tmp_path, 100_000)
    began = time.monotonic()
    told.reporter.begin()
    count = 0
    while time.monotonic() - began < 1.2:
        told.wrote(count)
        count += 1
    told.ledger.append(Rejected(count, "why"))
    told.reporter.finish()
    seconds = time.monotonic() - began
    figures = [e for e in told.events if isinstance(e, Progress)]
    assert 2 <= len(figures) <= 4 * seconds + 1
    assert (figures[-1].done, figures[-1].skipped) == (count, 1)
    assert figures[-1].tokens == 100 * count
    assert [(e.index, e.reason) for e in told.events if isinstance(e, Skipped)] == [(count, "why")]
    wrote = [e for e in told.events if isinstance(e, Wrote)]
    assert len(wrote) <= len(figures)
    assert (wrote[-1].index, wrote[-1].shape, wrote[-1].layers) == (count - 1, (100, 8), 2)


def test_figures_come_once_a_second_and_the_last_ones_always(tmp_path: Path) -> None:
    now = [100.0]
    told = Told(tmp_path, 1, clock=lambda: now[0])
    told.reporter.begin()
    for steps in range(1, 4):
        now[0] += 0.4
        told.ledger.append(
            Measured(10 * steps, steps, 1.0, 0.5, 0.25, 0.125, 3.0, 0.1, 0.75, 400, 7, 9)
        )
        told.reporter._turn()
    told.reporter.finish()
    figures = [e for e in told.events if isinstance(e, Throughput)]
    assert len(figures) == 2
    last = figures[-1]
    assert (last.steps, last.tokens) == (3, 30)
    assert last.seconds == pytest.approx(1.2)
    assert (last.prefill, last.capture, last.copy, last.wait) == (1.0, 0.5, 0.25, 0.125)
    assert (last.write, last.padding, last.fill) == (3.0, 0.1, 0.75)
    assert (last.threads, last.buffer_peak, last.buffer_limit) == (3, 400, 500)
    assert (last.disk_free, last.disk_total) == (7, 9)


def test_a_sample_twice_or_unasked_ends_the_run(tmp_path: Path) -> None:
    told = Told(tmp_path, 3)
    told.wrote(0)
    told.wrote(2)
    told.wrote(0)
    with pytest.raises(CaptureError, match="returned sample 0 twice or unasked"):
        told.reporter.finish()


def test_what_is_never_answered_is_found_at_the_end(tmp_path: Path) -> None:
    told = Told(tmp_path, 4)
    told.wrote(3)
    told.ledger.append(Rejected(0, "why"))
    told.reporter.finish()
    with pytest.raises(CaptureError, match="nothing for 2 samples, the first is 1"):
        told.awaited.settle(iter(()))


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (
            Fault("no space left on /out", "free some, then resume the run", "full"),
            OutputError,
            "no space left on /out: free some, then resume the run; 0.2 GiB are still to be "
            "written",
        ),
        (
            Fault("/out cannot be written (gone)", "resume the run once it can"),
            OutputError,
            "/out cannot be written (gone): resume the run once it can",
        ),
        (
            Fault("RuntimeError: no copy", "Traceback ...", "capture"),
            CaptureError,
            "the states could not be written: RuntimeError: no copy",
        ),
    ],
)
def test_a_fault_ends_the_run_at_the_next_look(
    tmp_path: Path, fault: Fault, kind: type[Exception], text: str
) -> None:
    told = Told(tmp_path, 3)
    told.wrote(0)
    told.ledger.append(fault)
    told.reporter.begin()
    deadline = time.monotonic() + 30
    error: Exception | None = None
    while error is None and time.monotonic() < deadline:
        try:
            told.reporter.check()
        except Exception as found:
            error = found
    assert type(error) is kind
    assert str(error) == text
    with pytest.raises(kind):
        told.reporter.finish()
    assert [e.done for e in told.events if isinstance(e, Progress)][-1] == 1


def test_events_that_cannot_be_written_end_the_run(tmp_path: Path) -> None:
    told = Told(tmp_path, 1)
    failed = threading.Event()

    def emit(event: Event) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    told.reporter._emit = emit
    told.reporter.begin()
    told.wrote(0)
    assert failed.wait(10)
    with pytest.raises(OSError, match="No space left"):
        told.reporter.finish()
    with pytest.raises(OSError, match="No space left"):
        told.reporter.check()
