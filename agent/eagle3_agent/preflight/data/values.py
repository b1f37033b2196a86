"""Token ids and loss masks of Arrow files, row by row, from their buffers: no library.

A list column is its offsets (where each row's values begin) and one run of values.  Offsets are
small and give every length; the values are as large as the data, so that a part of each batch is
looked at unless all are asked for.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from operator import gt
from typing import IO

from eagle3_agent.preflight.files import open_regular

from .arrow import Batch, Lists
from .tally import Counter, Limits, Row, Tally

#: Batches looked at when not all are asked for, spread evenly.
_BATCHES = 64

#: Bytes of ids in memory at a time; a row of more than _ROW_MOST ids is no sample.
_CHUNK, _ROW_MOST = 16 * 1024 * 1024, 2**27

#: Tokens learned, where there is a mask that cannot be read here.
_UNREAD = -1

_CODES = {
    (8, True): "b", (8, False): "B", (16, True): "h", (16, False): "H",
    (32, True): "i", (32, False): "I", (64, True): "q", (64, False): "Q",
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    tally: Tally
    whole: bool
    """Every row that the run takes was looked at, ids and all."""
    bytes: int
    """Of offsets and values that were read."""


class _Odd(Exception):
    """The buffers are not what the headers say."""


def look(
    files: list[tuple[str, list[Batch]]], budget: int | None, limits: Limits, *, masked: bool
) -> tuple[Look | None, str]:
    """(what the rows hold, "") or (None, why the values cannot be looked at).

    ``budget`` is the bytes of values to read at most, None for all; ``masked`` that there is a
    column loss_mask.  Raises OSError.
    """
    picked, skipped = _pick(files, budget, limits)
    if not picked or any("input_ids" not in b.lists for _, _, b in picked):
        return None, "its lists are compressed or nested in a way that is not read here"
    reader = _Reader(limits, None if budget is None else budget // len(picked), masked)
    try:
        for path, first, batch in picked:
            file, size = open_regular(path)
            with file:
                reader.batch(file, size, first, batch)
    except _Odd as error:
        return None, str(error)
    return Look(reader.counter.result(), reader.whole and not skipped, reader.bytes), ""


def _pick(
    files: list[tuple[str, list[Batch]]], budget: int | None, limits: Limits
) -> tuple[list[tuple[str, int, Batch]], bool]:
    """(file, its first row, batch) of what the run takes, and whether some are left out."""
    found = []
    rows = 0
    for path, batches in files:
        for batch in batches:
            if limits.max_samples is not None and rows >= limits.max_samples:
                break
            if batch.rows > 0:
                found.append((path, rows, batch))
                rows += batch.rows
    if budget is None or len(found) <= _BATCHES:
        return found, False
    return [found[i * (len(found) - 1) // (_BATCHES - 1)] for i in range(_BATCHES)], True


class _Reader:
    def __init__(self, limits: Limits, share: int | None, masked: bool) -> None:
        self.counter = Counter(limits)
        self._masked = masked
        self._limits = limits
        self._share = share
        self.whole = True
        self.bytes = 0

    def batch(self, file: IO[bytes], size: int, first: int, batch: Batch) -> None:
        """Judge its rows; raises _Odd."""
        rows = batch.rows
        if self._limits.max_samples is not None:
            rows = min(rows, self._limits.max_samples - first)
        ids, mask = batch.lists["input_ids"], batch.lists.get("loss_mask")
        source = _Source(file, size)
        starts = source.offsets(ids, rows)
        marks = source.offsets(mask, rows) if mask is not None else None
        left = self._share
        at = 0
        while at < rows and (left is None or left > 0):
            end = _within(starts, at, min(_CHUNK, left or _CHUNK) // (ids.bits // 8))
            values = source.values(ids, starts[at], starts[end])
            masks = source.values(mask, marks[at], marks[end]) if mask and marks else None
            for row in range(at, end):
                here = values[starts[row] - starts[at] : starts[row + 1] - starts[at]]
                own = masks[marks[row] - marks[at] : marks[row + 1] - marks[at]] if (
                    masks is not None and marks is not None
                ) else None  # fmt: skip
                self._row(f"row {first + row + 1}", here, own)
            left = None if left is None else left - len(values) * ids.bits // 8
            at = end
        self.whole = self.whole and at == rows
        self.bytes += source.bytes

    def _row(self, place: str, ids: array[int], mask: array[int] | None) -> None:
        if not ids:
            self.counter.broken(place, "empty: no token")
        elif min(ids) < 0:
            self.counter.broken(place, f"token id {min(ids)} is negative")
        elif mask is not None and len(mask) != len(ids):
            words = f"loss_mask has {len(mask)} entries, input_ids {len(ids)}"
            self.counter.broken(place, words)
        else:
            learned = _UNREAD if self._masked else None
            if mask is not None:
                learned = sum(mask[: self._limits.seq_length])
            self.counter.usable(place, Row(len(ids), True, max(ids), learned))


def _within(starts: array[int], at: int, values: int) -> int:
    """The row up to which ``values`` reach from row ``at`` on; one row at least.  Raises _Odd."""
    end = bisect_right(starts, starts[at] + values, at + 1) - 1
    end = max(at + 1, min(end, len(starts) - 1))
    if starts[end] - starts[at] > max(values, _ROW_MOST):
        raise _Odd(f"a row of it holds {starts[end] - starts[at]} values")
    return end


class _Source:
    """Buffers of one file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self.bytes = 0

    def offsets(self, lists: Lists, rows: int) -> array[int]:
        """rows + 1 offsets, none below the one before it."""
        width = 8 if lists.wide else 4
        found = self._read(lists.offsets, 0, (rows + 1) * width, "q" if lists.wide else "i")
        if found[0] < 0 or any(map(gt, found, found[1:])):
            raise _Odd("its offsets are not in order")
        return found

    def values(self, lists: Lists, first: int, end: int) -> array[int]:
        width = lists.bits // 8
        code = _CODES[lists.bits, lists.signed]
        return self._read(lists.values, first * width, (end - first) * width, code)

    def _read(self, buffer: tuple[int, int], start: int, count: int, code: str) -> array[int]:
        position, length = buffer
        if position < 0 or start + count > length or position + length > self._size:
            raise _Odd("a buffer is shorter than its rows need")
        self._file.seek(position + start)
        data = self._file.read(count)
        if len(data) < count:
            raise _Odd("a buffer lies past the end of the file")
        self.bytes += count
        found = array(code)
        found.frombytes(data)
        if sys.byteorder == "big":
            found.byteswap()
        return found
