"""Rows and list lengths of an Arrow IPC stream, from its message headers alone.

A stream is messages: 0xFFFFFFFF, int32 length of the metadata, the metadata (a
flatbuffer, padded), the body.  A record batch's metadata carries a length for
each node of its columns in depth-first order, so the child of a list column
says how many values all its lists hold: the tokens, with no body read.
Source: https://arrow.apache.org/docs/format/Columnar.html (IPC) and Message.fbs, Schema.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from eagle3_agent.preflight.files import open_regular

_CONTINUATION = 0xFFFFFFFF
_METADATA_LIMIT = 64 * 1024 * 1024
_SCHEMA, _RECORD_BATCH = 1, 3
_LIST_TYPES = (12, 16, 21)  # List, FixedSizeList, LargeList
_DEPTH_LIMIT = 32

#: Columns whose values can be looked at, see ``values``.
LISTS = ("input_ids", "loss_mask")
_INT, _LIST, _LARGE_LIST = 2, 12, 21
#: Type of Schema.fbs -> buffers of one node; unions, views and run-end encoding are left out.
_BUFFERS = {
    1: 0, 2: 2, 3: 2, 4: 3, 5: 3, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2, 12: 2, 13: 1, 15: 2, 16: 1,
    17: 2, 18: 2, 19: 3, 20: 3, 21: 2,
}  # fmt: skip
_COLUMN_LIMIT = 20_000


class BadFile(Exception):
    """What is wrong with the file, in words."""


@dataclass
class Table:
    size: int
    """Bytes of the file."""
    rows: int = 0
    columns: tuple[str, ...] = ()
    values: dict[str, int] = field(default_factory=dict)
    """List column -> values in all its lists."""
    batches: list[Batch] = field(default_factory=list)


@dataclass(frozen=True)
class Lists:
    """Where one list column of integers lies in the file, for one record batch."""

    wide: bool
    """Offsets have 8 bytes, not 4."""
    offsets: tuple[int, int]
    """(position, length) in bytes, of rows + 1 offsets."""
    values: tuple[int, int]
    bits: int
    """Of one value: 8, 16, 32 or 64."""
    signed: bool


@dataclass(frozen=True)
class Batch:
    rows: int
    lists: dict[str, Lists] = field(default_factory=dict)
    """Of the columns ``input_ids`` and ``loss_mask``; not there where it is compressed or nested
    in another way."""


@dataclass(frozen=True)
class _Column:
    name: str
    nodes: int
    """Nodes of it and everything below it."""
    is_list: bool
    kind: int = 0
    buffers: int | None = None
    """Of it and everything below it; None where that takes the batch to know."""
    bits: int = 0
    signed: bool = True
    item: tuple[int, bool] = (0, True)
    """(bits, signed) of a list's integers; 0 for anything else."""


def read(path: str) -> Table:
    """Walk the messages.  Raises BadFile."""
    try:
        file, size = open_regular(path)
        with file:
            return _walk(file, size)
    except (struct.error, IndexError):
        raise BadFile("is not an Arrow stream, or a broken one") from None
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from None


def _walk(file: IO[bytes], size: int) -> Table:
    table = Table(size)
    columns: list[_Column] = []
    position = 8 if file.read(8).startswith(b"ARROW1") else 0
    while position < size:
        file.seek(position)
        head = file.read(8)
        (first,) = struct.unpack_from("<I", head)
        # before format 1.0 there was no continuation mark
        start = 8 if first == _CONTINUATION else 4
        length = struct.unpack_from("<i", head, start - 4)[0]
        if length == 0:
            break
        if not 0 < length <= min(_METADATA_LIMIT, size):
            raise BadFile("is not an Arrow stream")
        file.seek(position + start)
        metadata = file.read(length)
        if len(metadata) < length:
            raise BadFile(f"is cut off: {length - len(metadata)} bytes are missing at least")
        message = _Flat(metadata)
        body = message.i64(3)
        position += start + length + body
        if body < 0 or position > size:
            raise BadFile(f"is cut off: {position - size} bytes are missing")
        kind, header = message.u8(1), message.table(2)
        if kind == _SCHEMA and header is not None:
            budget = iter(range(_COLUMN_LIMIT))
            columns = [_column(f, budget) for f in header.tables(1)]
            table.columns = tuple(c.name for c in columns)
        elif kind == _RECORD_BATCH and header is not None:
            table.rows += header.i64(0)
            _count(table, columns, header)
            table.batches.append(_batch(columns, header, position - body))
    if not table.columns:
        raise BadFile("is not an Arrow stream: it has no schema")
    return table


def _count(table: Table, columns: list[_Column], batch: _Flat) -> None:
    nodes = batch.structs(1, 16)
    at = 0
    for column in columns:
        if column.is_list:
            (length,) = struct.unpack_from("<q", nodes[at + 1])
            table.values[column.name] = table.values.get(column.name, 0) + length
        at += column.nodes


def _batch(columns: list[_Column], batch: _Flat, body: int) -> Batch:
    """Where its lists lie; ``body`` is the position of its body in the file."""
    rows = batch.i64(0)
    found: dict[str, Lists] = {}
    if batch.table(3) is not None:  # the buffers are compressed
        return Batch(rows)
    buffers = [
        (body + start, length)
        for start, length in (struct.unpack("<qq", b) for b in batch.structs(2, 16))
    ]
    at = 0
    for column in columns:
        if column.buffers is None:
            break
        bits, signed = column.item
        if column.name in LISTS and column.kind in (_LIST, _LARGE_LIST) and bits:
            mine = buffers[at : at + 4]  # validity and offsets of the list, validity and values
            if len(mine) == 4 and bits in (8, 16, 32, 64):
                wide = column.kind == _LARGE_LIST
                found[column.name] = Lists(wide, mine[1], mine[3], bits, signed)
        at += column.buffers
    return Batch(rows, found)


def _column(field_: _Flat, budget: Iterator[int], depth: int = 0) -> _Column:
    # offsets may point anywhere: a few bytes can describe a tree without end
    if depth > _DEPTH_LIMIT or next(budget, None) is None:
        raise BadFile("has too many columns, or nested too deep")
    below = [_column(child, budget, depth + 1) for child in field_.tables(5)]
    nodes = 1 + sum(c.nodes for c in below)
    kind, details = field_.u8(2), field_.table(3)
    encoded = field_.table(4) is not None  # by a dictionary: its indices are the column
    own = 2 if encoded else _BUFFERS.get(kind)
    parts = [own, *(c.buffers for c in below)]
    whole = None if None in parts else sum(p for p in parts if p is not None)
    is_list = kind in _LIST_TYPES and len(below) == 1
    number = details if kind == _INT and not encoded else None
    return _Column(
        name=field_.text(0),
        nodes=nodes,
        is_list=is_list,
        kind=kind,
        buffers=whole,
        bits=number.i32(0) if number is not None else 0,
        signed=number is None or bool(number.u8(1)),
        item=(below[0].bits, below[0].signed) if is_list and below[0].kind == _INT else (0, True),
    )


class _Flat:
    """A flatbuffer table: fields by number; a field that is absent reads as zero or nothing."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        self._data = data
        self._at = struct.unpack_from("<I", data)[0] if position is None else position
        self._vtable = self._at - struct.unpack_from("<i", data, self._at)[0]
        if self._vtable < 0:
            raise IndexError("a vtable before the buffer")
        (self._vsize,) = struct.unpack_from("<H", data, self._vtable)

    def _field(self, number: int) -> int:
        slot = 4 + 2 * number
        if slot + 2 > self._vsize:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + slot)
        return self._at + offset if offset else 0

    def u8(self, number: int) -> int:
        at = self._field(number)
        return self._data[at] if at else 0

    def i32(self, number: int) -> int:
        at = self._field(number)
        return int(struct.unpack_from("<i", self._data, at)[0]) if at else 0

    def i64(self, number: int) -> int:
        at = self._field(number)
        return int(struct.unpack_from("<q", self._data, at)[0]) if at else 0

    def _follow(self, at: int) -> int:
        return at + int(struct.unpack_from("<I", self._data, at)[0])

    def table(self, number: int) -> _Flat | None:
        at = self._field(number)
        return _Flat(self._data, self._follow(at)) if at else None

    def _vector(self, number: int) -> tuple[int, int]:
        """(position of the first item, count)"""
        at = self._field(number)
        if not at:
            return 0, 0
        start = self._follow(at)
        (count,) = struct.unpack_from("<I", self._data, start)
        if count > len(self._data):
            raise IndexError("a vector longer than the buffer")
        return start + 4, count

    def tables(self, number: int) -> list[_Flat]:
        start, count = self._vector(number)
        return [_Flat(self._data, self._follow(start + 4 * i)) for i in range(count)]

    def structs(self, number: int, size: int) -> list[bytes]:
        start, count = self._vector(number)
        return [self._data[start + size * i : start + size * (i + 1)] for i in range(count)]

    def text(self, number: int) -> str:
        at = self._field(number)
        if not at:
            return ""
        start = self._follow(at)
        (length,) = struct.unpack_from("<I", self._data, start)
        return self._data[start + 4 : start + 4 + length].decode("utf-8", "replace")
