"""Where the time of capturing goes: device time between marks, host time waited, rows counted."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from .device import Mark

#: Seconds between two lines.
_PERIOD = 1.0


class Meter:
    """Sums since the process began to extract."""

    def __init__(self, budget: int) -> None:
        """``budget``: tokens of a full step."""
        self._budget = budget
        self._spans: deque[tuple[str, Mark, Mark]] = deque()
        self._seconds = {"forward": 0.0, "capture": 0.0, "copy": 0.0}
        self._told = time.monotonic()
        self._begin: Mark | None = None
        self._rows = 0
        self._step_rows = 0
        self.tokens = 0
        self.steps = 0
        self.wait = 0.0
        """Seconds in which the step stood still for want of room."""

    def began(self, mark: Mark, tokens: int) -> None:
        """A step of ``tokens`` begins."""
        self._begin = mark
        self._step_rows = tokens
        self.tokens += tokens
        self.steps += 1

    def captured(self, begin: Mark, end: Mark, rows: int) -> None:
        """A layer that gave ``rows`` rows, padding included, was put into the buffer."""
        self._spans.append(("capture", begin, end))
        self._step_rows = max(self._step_rows, rows)

    def ended(self, mark: Mark) -> None:
        if self._begin is not None:
            self._spans.append(("forward", self._begin, mark))
        self._rows += self._step_rows

    def copied(self, begin: Mark, end: Mark) -> None:
        self._spans.append(("copy", begin, end))
        self._collect()

    def due(self) -> bool:
        """Whether a line may be told again."""
        return time.monotonic() - self._told >= _PERIOD

    def measured(self, write: float, peak: int) -> Any:
        """A ``writing.ledger.Measured``."""
        from eagle3_agent.worker.writing.ledger import Measured

        self._told = time.monotonic()
        self._collect()
        capture = self._seconds["capture"]
        return Measured(
            tokens=self.tokens,
            steps=self.steps,
            prefill=self._seconds["forward"] - capture,
            capture=capture,
            copy=self._seconds["copy"],
            wait=self.wait,
            write=write,
            padding=1 - self.tokens / self._rows if self._rows else 0.0,
            fill=self.tokens / (self.steps * self._budget) if self.steps else 0.0,
            buffer_peak=peak,
        )

    def _collect(self) -> None:
        """Add up what the device has done; the rest stays for later."""
        while self._spans and self._spans[0][2].done():
            kind, begin, end = self._spans.popleft()
            self._seconds[kind] += end.seconds_since(begin)
