"""The lines of a log that arrives in pieces of bytes; pure.

Lines are kept as the bytes they came in and made readable only when one is
looked at: adding a megabyte costs a split.  A line that a progress bar
rewrites with carriage returns keeps its newest text only, as on a terminal.
Memory is bounded; what was dropped is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .hosttext import clean

#: Bytes kept; older lines go first.
BUDGET = 64 * 1024 * 1024
#: A line is broken here, so that no single one can hold the screen up.
LONGEST = 1024 * 1024
#: What one line costs beside its bytes.
_OVERHEAD = 41


class LineBuffer:
    """Line ``i`` counts from the first line ever added; ``first`` is the oldest one kept."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.first = 0
        """Lines dropped so far."""
        self._lines: list[bytes] = []
        self._open = b""
        self._bytes = 0

    def __len__(self) -> int:
        """Lines kept, the unfinished last one included."""
        return len(self._lines) + (1 if self._open else 0)

    @property
    def end(self) -> int:
        """One past the last line."""
        return self.first + len(self)

    def add(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        *whole, rest = data.split(b"\n")
        if not whole:
            self._open = self._shorten(self._open + rest)
            return
        whole[0] = self._open + whole[0]
        if max(map(len, whole)) > LONGEST:
            whole = [piece for line in whole for piece in _broken(line)]
        self._lines += whole
        self._bytes += sum(map(len, whole)) + _OVERHEAD * len(whole)
        self._open = self._shorten(rest)
        self._drop()

    def _shorten(self, rest: bytes) -> bytes:
        """The unfinished line without what a carriage return has already overwritten."""
        if b"\r" in rest:
            rest = _newest(rest)
        while len(rest) > LONGEST:
            self._lines.append(rest[:LONGEST])
            self._bytes += LONGEST + _OVERHEAD
            rest = rest[LONGEST:]
        self._drop()
        return rest

    def _drop(self) -> None:
        if self._bytes <= self.budget:
            return
        # a tenth more than needed, so that dropping is rare
        goal, gone = self._bytes - self.budget + self.budget // 10, 0
        number = 0
        while number < len(self._lines) - 1 and gone < goal:
            gone += len(self._lines[number]) + _OVERHEAD
            number += 1
        del self._lines[:number]
        self.first += number
        self._bytes -= gone

    def raw(self, line: int) -> bytes:
        """The bytes of a line; empty for one that is not kept."""
        at = line - self.first
        if 0 <= at < len(self._lines):
            return self._lines[at]
        return self._open if at == len(self._lines) else b""

    def text(self, line: int, limit: int = 20_000) -> str:
        """A line as clean text, at most about ``limit`` characters of it."""
        data = self.raw(line)
        if b"\r" in data:
            data = _newest(data).removesuffix(b"\r")
        cut = len(data) > limit
        text = clean(data[:limit].decode("utf-8", "replace"))
        return f"{text}… ({len(data)} bytes)" if cut else text

    def find(self, pattern: re.Pattern[bytes], start: int, stop: int, step: int) -> int | None:
        """The first line from ``start`` towards ``stop`` (not included) that matches."""
        for line in range(start, stop, step):
            if pattern.search(self.raw(line)):
                return line
        return None


def _newest(data: bytes) -> bytes:
    """What a terminal shows of text with carriage returns: the last part that has any text."""
    body = data.rstrip(b"\r")
    tail = b"\r" if len(body) < len(data) else b""
    return body.rsplit(b"\r", 1)[-1] + tail


def _broken(line: bytes) -> list[bytes]:
    return [line[i : i + LONGEST] for i in range(0, len(line), LONGEST)] or [b""]


@dataclass(frozen=True)
class Search:
    """What is looked for, ignoring case: over raw bytes to find, over clean text to mark."""

    said: str
    data: re.Pattern[bytes]
    text: re.Pattern[str]

    @staticmethod
    def of(said: str) -> Search:
        """From a regular expression; text that is none is searched for as it stands."""
        raw = said.encode("utf-8", "surrogateescape")
        try:
            return Search(said, re.compile(raw, re.IGNORECASE), re.compile(said, re.IGNORECASE))
        except (re.error, OverflowError, RecursionError):
            data = re.compile(re.escape(raw), re.IGNORECASE)
            return Search(said, data, re.compile(re.escape(said), re.IGNORECASE))
