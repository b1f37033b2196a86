"""Which lines of a log are shown: by level, by process, both; pure.

A line is judged once, when it comes; what is shown is a list of numbers, so that a million lines
cost eight megabytes and scrolling costs nothing.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

from eagle3_agent.causes import loglines

from .logbuffer import LineBuffer

Level = Literal["all", "warnings", "errors"]

_SEVERE = {"WARNING": 1, "WARN": 1, "ERROR": 2, "CRITICAL": 2, "FATAL": 2}
_LEAST: dict[Level, int] = {"all": 0, "warnings": 1, "errors": 2}

#: What an error looks like that no logger wrote, and what belongs to it.
_RAISED = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|terminate called|"
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:$|: )|NCCL WARN|Segmentation fault|Killed$"
)
_BELONGS = re.compile(r"\s|$|The above exception was|During handling of")
_WARNED = re.compile(r"\b\w*Warning: ")

#: Names of processes that are offered to choose from.
_PROCESSES = 64


@dataclass(frozen=True)
class Wanted:
    level: Level = "all"
    process: str | None = None
    """As ``name`` gives it; None for every process, empty for lines without a name."""

    @property
    def everything(self) -> bool:
        return self.level == "all" and self.process is None


def name(process: str) -> str:
    """``Worker_TP3 pid=99`` -> ``Worker_TP3``: the same process of every attempt."""
    return re.sub(r",? ?pid=.*", "", process)


class LogFilter:
    """Follows a buffer: judges its lines, in slices, and knows which are to be shown."""

    def __init__(self, buffer: LineBuffer) -> None:
        self.buffer = buffer
        self.wanted = Wanted()
        self.processes: tuple[str, ...] = ()
        """Seen so far, in the order of their appearance; empty for lines without a name."""
        self._shown = array("q")
        self._next = 0
        self._severity: dict[str, int] = {}

    def choose(self, wanted: Wanted) -> None:
        """Show other lines; all that is kept is judged anew."""
        self.wanted = wanted
        self._shown = array("q")
        self._next = self.buffer.first
        self._severity = {}

    def judge(self, most: int = 20_000) -> bool:
        """Look at up to ``most`` lines that are finished; whether more are waiting."""
        buffer = self.buffer
        start = max(self._next, buffer.first)
        stop = min(buffer.whole, start + most)
        for number in range(start, stop):
            if self._passes(buffer.raw(number)):
                self._shown.append(number)
        self._next = stop
        return stop < buffer.whole

    def _passes(self, raw: bytes) -> bool:
        line = loglines.parse(loglines.decode(raw[:2048]))
        who = name(line.process)
        if who not in self._severity and len(self.processes) < _PROCESSES:
            self.processes = (*self.processes, who) if who not in self.processes else self.processes
        severity = self._judge(line, self._severity.get(who, 0))
        if len(self._severity) < 4 * _PROCESSES or who in self._severity:
            self._severity[who] = severity
        wanted = self.wanted
        if wanted.process is not None and who != wanted.process:
            return False
        return severity >= _LEAST[wanted.level]

    @staticmethod
    def _judge(line: loglines.Line, before: int) -> int:
        """A line without a level is an error by its look, or goes with the one before it."""
        if line.level:
            return _SEVERE.get(line.level, 0)
        if _RAISED.match(line.text):
            return 2
        if _WARNED.search(line.text, 0, 300):
            return 1
        return before if before and _BELONGS.match(line.text) else 0

    # ---------------------------------------------------------------- what is shown

    def __len__(self) -> int:
        if self.wanted.everything:
            return len(self.buffer)
        return len(self._shown) - self._dropped()

    @property
    def gone(self) -> int:
        """Rows that were shown and that the buffer has let go."""
        return self.buffer.first if self.wanted.everything else self._dropped()

    def _dropped(self) -> int:
        if not self._shown or self._shown[0] >= self.buffer.first:
            return 0
        return bisect_left(self._shown, self.buffer.first)

    def line(self, row: int) -> int | None:
        """The number of the line in this row, from 0; None past the end."""
        if self.wanted.everything:
            number = self.buffer.first + row
            return number if number < self.buffer.end else None
        at = self._dropped() + row
        return self._shown[at] if 0 <= at < len(self._shown) else None

    def row(self, number: int) -> int:
        """The row of a line, or of the next one that is shown."""
        if self.wanted.everything:
            return number - self.buffer.first
        return bisect_left(self._shown, number) - self._dropped()

    def shows(self, number: int) -> bool:
        if self.wanted.everything:
            return True
        at = bisect_left(self._shown, number)
        return at < len(self._shown) and self._shown[at] == number
