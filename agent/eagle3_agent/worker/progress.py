"""How far a run is, at most four times a second, by the monotonic clock.

One thread reads what the writers say and tells it.  Tokens and bytes are
those of this attempt; samples that were there before count as done and never
as speed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from eagle3_agent.protocol.events import Event, Progress, Skipped, Throughput, Wrote

from .engines.base import Emit
from .errors import CaptureError, OutputError, WorkerError
from .feed import Awaited
from .manifest import Entry
from .writing.ledger import Fault, Follower, Line, Measured, Rejected, Written

_INTERVAL = 0.25
_FIGURES = 1.0
"""Seconds between two Throughput events."""
_WINDOW = 10.0


class Meter:
    """The arithmetic: counts in, a ``Progress`` out; no thread and no clock of its own."""

    def __init__(self, total: int, tokens: int, *, reused: int, skipped: int) -> None:
        """``tokens`` are those still to capture."""
        self._total, self._planned = total, tokens
        self._done, self._skipped = reused, skipped
        self._tokens = self._bytes = 0
        self._began: float | None = None
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self, now: float) -> None:
        """The extract stage begins: speed and ETA count from here."""
        self._began = now
        self._marks.append((now, 0))

    def add(self, tokens: int, size: int) -> None:
        self._done += 1
        self._tokens += tokens
        self._bytes += size

    def skip(self) -> None:
        self._skipped += 1

    @property
    def left(self) -> int:
        """Tokens whose files are not written yet, as far as is known."""
        return max(0, self._planned - self._tokens)

    def elapsed(self, now: float) -> float:
        """Seconds since ``begin``."""
        return 0.0 if self._began is None else now - self._began

    def read(self, now: float, t: float) -> Progress:
        """Where the run stands; ``now`` is monotonic, ``t`` is what the event carries."""
        rate, window = self._rate(now)
        return Progress(
            t=t,
            done=self._done,
            total=self._total,
            skipped=self._skipped,
            tokens=self._tokens,
            bytes=self._bytes,
            tokens_per_second=rate,
            window=window,
            eta=self._eta(now),
        )

    def _rate(self, now: float) -> tuple[float | None, float | None]:
        if self._began is None:
            return None, None
        self._marks.append((now, self._tokens))
        # the mark just outside the window stays: it is where the window's first token counts from
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW:
            self._marks.popleft()
        since, tokens = self._marks[0]
        span = now - since
        return ((self._tokens - tokens) / span, span) if span > 0 else (None, None)

    def _eta(self, now: float) -> float | None:
        if self._began is None or not self._tokens:
            return None
        return self.left * (now - self._began) / self._tokens


@dataclass(frozen=True)
class Bounds:
    """What the events and errors of a run say of its writers."""

    threads: int
    buffer_bytes: int
    token_bytes: int
    """Of the states of one token, all layers."""


class Reporter:
    """Follows the ledger; emits what changed, from a thread of its own."""

    def __init__(
        self,
        meter: Meter,
        ledger: Follower,
        awaited: Awaited,
        bounds: Bounds,
        emit: Emit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter, self._ledger, self._awaited = meter, ledger, awaited
        self._bounds, self._emit, self._clock = bounds, emit, clock
        self._changed = True
        self._newest: Entry | None = None
        self._figures: Measured | None = None
        self._told = 0.0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)

    def begin(self) -> None:
        self._meter.begin(self._clock())
        self._thread.start()

    def check(self) -> None:
        """Raises what ends the run: OutputError or CaptureError for what the writers met or
        answered, OSError for events that cannot be written."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Tell the last figures; callable twice, and without ``begin``.  Raises like ``check``."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._turn(last=True)
        self.check()

    def _work(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._turn()

    def _turn(self, last: bool = False) -> None:
        try:
            events = []
            for line in self._ledger.read():
                events += self._take(line)
            self._tell(events, last)
        except BaseException as error:  # raised in the run's thread
            self._error = self._error or error

    def _take(self, line: Line) -> list[Event]:
        if isinstance(line, Measured):
            self._figures = line
            return []
        if isinstance(line, Fault):
            self._error = self._error or self._explained(line)
            return []
        self._changed = True
        index = line.entry.index if isinstance(line, Written) else line.index
        try:
            self._awaited.answer(index)
        except CaptureError as error:
            self._error = self._error or error
            return []
        if isinstance(line, Rejected):
            self._meter.skip()
            return [Skipped(time.time(), index, line.reason)]
        self._meter.add(line.entry.tokens, line.entry.bytes)
        self._newest = line.entry
        return []

    def _explained(self, fault: Fault) -> WorkerError:
        if fault.kind == "capture":
            print(fault.text, file=sys.stderr, flush=True)
            return CaptureError(f"the states could not be written: {fault.title}")
        if fault.kind == "output":
            return OutputError(f"{fault.title}: {fault.text}")
        left = self._meter.left * self._bounds.token_bytes / 2**30
        return OutputError(f"{fault.title}: {fault.text}; {left:.1f} GiB are still to be written")

    def _tell(self, events: list[Event], last: bool) -> None:
        for event in events:
            self._emit(event)
        now = self._clock()
        figures = self._figures
        if figures is not None and (last or now - self._told >= _FIGURES):
            self._figures, self._told = None, now
            self._emit(self._throughput(figures, now))
        if not self._changed:
            return
        self._changed = False
        newest, self._newest = self._newest, None
        reading = self._meter.read(now, time.time())
        if newest is not None:
            self._emit(_wrote(newest, reading.t))
        self._emit(reading)

    def _throughput(self, found: Measured, now: float) -> Throughput:
        return Throughput(
            t=time.time(),
            seconds=self._meter.elapsed(now),
            tokens=found.tokens,
            steps=found.steps,
            prefill=found.prefill,
            capture=found.capture,
            copy=found.copy,
            write=found.write,
            wait=found.wait,
            padding=found.padding,
            fill=found.fill,
            threads=self._bounds.threads,
            buffer_peak=found.buffer_peak,
            buffer_limit=self._bounds.buffer_bytes,
            disk_free=found.disk_free,
            disk_total=found.disk_total,
        )


def _wrote(entry: Entry, t: float) -> Wrote:
    return Wrote(
        t=t,
        index=entry.index,
        file=entry.file,
        tokens=entry.tokens,
        bytes=entry.bytes,
        shape=(entry.tokens, entry.hidden),
        layers=entry.layers,
        dtype=entry.dtype,
    )
