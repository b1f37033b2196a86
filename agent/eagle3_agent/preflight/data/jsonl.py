"""Rows of a JSON-lines file in bounded memory: all of it, or places spread over it.

A part is the beginning and then places at equal distances.  At each place the lines that begin
within it are taken, so that every line has the same chance, long or short.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO

from eagle3_agent import jsonline

from .tally import Counter, Limits, Tally

#: Places after the beginning, when a file is too large to be read whole.
PLACES = 24

#: A longer line is passed over at a place: it would take the time of many others.
_LINE_AT_PLACE = 2 * 1024 * 1024

#: Lines whose like is remembered: 60 MB.
_REMEMBERED = 500_000

_BOM = b"\xef\xbb\xbf"
_MAGIC = (
    (b"\x1f\x8b", "is compressed with gzip", "Unpack it: gunzip."),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "Unpack it: unzstd."),
    (b"BZh", "is compressed with bzip2", "Unpack it: bunzip2."),
    (b"\xfd7zXZ\x00", "is compressed with xz", "Unpack it: unxz."),
    (b"PK\x03\x04", "is a zip archive", "Unpack it."),
    (b"PAR1", "is a parquet file by its first bytes", "Give it a name that ends in .parquet."),
    (b"ARROW1", "is an Arrow file by its first bytes", "Name the folder of the saved dataset."),
    (b"version https://git-lfs", "is a Git LFS pointer", "Run git lfs pull in its folder."),
    (b"\xff\xfe", "is UTF-16", "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8."),
    (b"\xfe\xff", "is UTF-16", "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8."),
    (b"{\x00", "is UTF-16", "Convert it to UTF-8: iconv -f UTF-16LE -t UTF-8."),
    (b"\x00{", "is UTF-16", "Convert it to UTF-8: iconv -f UTF-16BE -t UTF-8."),
)


@dataclass(frozen=True)
class Part:
    """What was read of the file."""

    tally: Tally
    bytes: int
    """Of the lines that were judged."""
    whole: bool
    """The file's end or the last row that the run takes was reached."""
    read: int = 0
    """Bytes read in all."""
    places: int = 0
    """Places after the beginning at which it was read."""
    repeated: int = 0
    """Lines that are byte for byte another one's."""


def why_not(head: bytes) -> tuple[str, str]:
    """(what else the file is, what to do), or two empty texts; from its first bytes."""
    for magic, problem, todo in _MAGIC:
        if head.startswith(magic):
            return problem, todo
    if head and not head.strip(b"\0"):
        return "begins with zero bytes: it was not written to its end", "Copy the file again."
    if head.removeprefix(_BOM).lstrip()[:1] == b"[":
        return "is one JSON array, not one JSON object a line", "Convert it: jq -c '.[]'."
    return "", ""


def notes(head: bytes) -> tuple[str, ...]:
    """What is odd about the first bytes and does no harm."""
    found = ["opens with a byte order mark"] if head.startswith(_BOM) else []
    return (*found, "lines end in CRLF") if b"\r\n" in head else tuple(found)


def read(file: IO[bytes], size: int, limit: int, limits: Limits) -> Part:
    """Look at the lines that the run takes, ``limit`` bytes of them at most.  Raises OSError."""
    reader = _Reader(file, limits)
    reader.forward(limit if size <= limit else limit // 4)
    end = reader.end(size)
    if not reader.ended and end - reader.read <= limit - limit // 4:
        reader.forward(end - reader.read + 1)
        end = reader.end(size)
    if reader.ended:
        return reader.part(whole=True)
    # the last place ends where the file does: that is where a copy was cut off
    begin, window = reader.read, (limit - limit // 4) // PLACES
    span = end - begin - window
    if span <= 0:  # lines grew longer, and what is left of the run's is a handful
        return reader.part(whole=False)
    for number in range(PLACES):
        reader.place(begin + span * number // (PLACES - 1), window)
    return reader.part(whole=False)


class _Reader:
    """Lines of one file, judged as they come."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file, self._limits = file, limits
        self._counter = Counter(limits)
        self._known: set[int] = set()
        self._number = 0
        self._judged = 0
        self._repeated = 0
        self._places = 0
        self.read = 0
        self.ended = False
        """Nothing is left that the run would take."""

    def forward(self, most: int) -> None:
        """The next lines, until ``most`` bytes more are read."""
        stop = self.read + most
        while self.read < stop:
            if self._counter.full():
                self.ended = True
                return
            line, length = jsonline.take(self._file, stop - self.read)
            if line == b"":
                self.ended = True
                return
            self._number += 1
            self.read += length
            self._judge(f"line {self._number}", line, length)
        self.ended = self._counter.full() or not self._more()

    def _more(self) -> bool:
        byte = self._file.read(1)
        self._file.seek(-len(byte), os.SEEK_CUR)
        return bool(byte)

    def place(self, begin: int, window: int) -> None:
        """The lines that begin in ``window`` bytes from ``begin`` on."""
        self._file.seek(begin - 1)  # a line that begins at ``begin`` itself counts
        at = begin - 1
        self._places += 1
        partial = True
        while at < begin + window:
            most = window + 1 if partial else _LINE_AT_PLACE
            line = self._file.readline(most)
            self.read += len(line)
            if not line or (len(line) == most and not line.endswith(b"\n")):
                return
            if not partial:
                self._judge(f"byte {at}", line, len(line))
            at += len(line)
            partial = False

    def end(self, size: int) -> int:
        """Where the last row that the run takes ends, by the length of those that were read."""
        most = self._limits.max_samples
        if most is None or not self._counter.rows:
            return size
        return min(size, self._judged * most // self._counter.rows)

    def part(self, *, whole: bool) -> Part:
        tally = self._counter.result()
        return Part(tally, self._judged, whole, self.read, self._places, self._repeated)

    def _judge(self, place: str, line: bytes | None, length: int) -> None:
        self._judged += length
        if line is None or line.strip():  # a blank line is no row
            self._counter.add(place, jsonline.parse(line))
            self._repeated += self._again(line)

    def _again(self, line: bytes | None) -> bool:
        mark = hash(line)
        if line is None or mark in self._known:
            return line is not None
        if len(self._known) < _REMEMBERED:
            self._known.add(mark)
        return False
