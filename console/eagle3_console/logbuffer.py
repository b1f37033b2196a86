"""The lines of a log that arrives in pieces of bytes; pure.

Lines are kept as the bytes they came in and made readable only when one is
looked at: adding a megabyte costs a split.  A line that a progress bar
rewrites with carriage returns keeps its newest text only, as on a terminal.
Memory is bounded; what was dropped is counted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from .hosttext import clean

#: Bytes kept; older lines go first.
BUDGET = 64 * 1024 * 1024
#: A line is broken here, so that no single one can hold the screen up.
LONGEST = 1024 * 1024
#: What one line costs beside its bytes.
_OVERHEAD = 41
#: Lines and bytes that make a block full; blocks are dropped as a whole.
_BLOCK_LINES = 1024
_BLOCK_BYTES = 256 * 1024


@dataclass
class _Block:
    """Lines that came after one another; ``first`` is the number of the first of them."""

    first: int
    lines: list[bytes]
    bytes: int

    @property
    def full(self) -> bool:
        return len(self.lines) >= _BLOCK_LINES or self.bytes >= _BLOCK_BYTES


class LineBuffer:
    """Line ``i`` counts from the first line ever added; ``first`` is the oldest one kept."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.first = 0
        """Lines dropped so far."""
        self._blocks: list[_Block] = []
        self._near = _Block(0, [], 0)
        """The block that was read last: the next line asked for mostly is there too."""
        self._open = b""
        self._whole = 0
        """One past the last line that is finished."""
        self._bytes = 0

    def __len__(self) -> int:
        """Lines kept, the unfinished last one included."""
        return self.end - self.first

    @property
    def end(self) -> int:
        """One past the last line."""
        return self._whole + (1 if self._open else 0)

    @property
    def whole(self) -> int:
        """One past the last line that is finished."""
        return self._whole

    def add(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        *whole, rest = data.split(b"\n")
        if not whole:
            self._open = self._shorten(self._open + rest)
            return
        whole[0] = self._open + whole[0]
        if max(map(len, whole)) > LONGEST:
            whole = [piece for line in whole for piece in _broken(line)]
        self._append(whole)
        self._open = self._shorten(rest)
        self._drop()

    def _shorten(self, rest: bytes) -> bytes:
        """The unfinished line without what a carriage return has already overwritten."""
        if b"\r" in rest:
            rest = _newest(rest)
        while len(rest) > LONGEST:
            self._append([rest[:LONGEST]])
            rest = rest[LONGEST:]
        self._drop()
        return rest

    def _append(self, lines: list[bytes]) -> None:
        """Put whole lines into the last block, then into new ones."""
        mean = sum(map(len, lines)) // len(lines) + 1
        step = max(1, min(_BLOCK_LINES, _BLOCK_BYTES // mean))
        for at in range(0, len(lines), step):
            part = lines[at : at + step]
            if not self._blocks or self._blocks[-1].full:
                self._blocks.append(_Block(self._whole, [], 0))
            block = self._blocks[-1]
            size = sum(map(len, part)) + _OVERHEAD * len(part)
            block.lines += part
            block.bytes += size
            self._bytes += size
            self._whole += len(part)

    def _drop(self) -> None:
        """Let the oldest blocks go; what that costs depends on them, not on what is kept."""
        gone = 0
        while self._bytes > self.budget and gone < len(self._blocks) - 1:
            self._bytes -= self._blocks[gone].bytes
            gone += 1
        if gone:
            del self._blocks[:gone]
            self._near = self._blocks[0]
            self.first = self._near.first

    def raw(self, line: int) -> bytes:
        """The bytes of a line; empty for one that is not kept."""
        if not self.first <= line < self._whole:
            return self._open if line == self._whole else b""
        block = self._near
        if not block.first <= line < block.first + len(block.lines):
            block = self._blocks[bisect_right(self._blocks, line, key=_first) - 1]
            self._near = block
        return block.lines[line - block.first]

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


def _first(block: _Block) -> int:
    return block.first


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
