"""How far a run is, at most four times a second, by the monotonic clock.

Writer threads count, one reporter thread tells.  Tokens and bytes are those
of this attempt; samples that were there before count as done and never as
speed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from eagle3_agent.protocol.events import Progress, Skipped, Wrote

from .engines.base import Emit
from .manifest import Entry

_INTERVAL = 0.25
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
        left = max(0, self._planned - self._tokens)
        return left * (now - self._began) / self._tokens


class Reporter:
    """Emits the meter's reading when it changed, from a thread of its own."""

    def __init__(self, meter: Meter, emit: Emit, clock: Callable[[], float] = time.monotonic):
        self._meter, self._emit, self._clock = meter, emit, clock
        self._lock = threading.Lock()
        self._changed = True
        self._newest: Entry | None = None
        self._skips: list[Skipped] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)

    def begin(self) -> None:
        with self._lock:
            self._meter.begin(self._clock())
        self._thread.start()

    def wrote(self, entry: Entry) -> None:
        with self._lock:
            self._meter.add(entry.tokens, entry.bytes)
            self._newest, self._changed = entry, True

    def skipped(self, index: int, reason: str) -> None:
        with self._lock:
            self._meter.skip()
            self._skips.append(Skipped(time.time(), index, reason))
            self._changed = True

    def check(self) -> None:
        """Raises what the reporter met: events that cannot be written end the run."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Tell the last figures; callable twice, and without ``begin``."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._tell()
        self.check()

    def _work(self) -> None:
        while not self._stop.wait(_INTERVAL):
            try:
                self._tell()
            except BaseException as error:
                self._error = error
                return

    def _tell(self) -> None:
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            newest, self._newest = self._newest, None
            skips, self._skips = self._skips, []
            reading = self._meter.read(self._clock(), time.time())
        for skip in skips:
            self._emit(skip)
        if newest is not None:
            self._emit(
                Wrote(
                    t=reading.t,
                    index=newest.index,
                    file=newest.file,
                    tokens=newest.tokens,
                    bytes=newest.bytes,
                    shape=(newest.tokens, newest.hidden),
                    layers=newest.layers,
                    dtype=newest.dtype,
                )
            )
        self._emit(reading)
