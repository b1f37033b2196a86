"""Rows, columns and value counts of a parquet file, from its footer alone.

A file ends in the footer, its length (little-endian u32) and ``PAR1``; the
footer is a FileMetaData struct in Thrift's compact protocol.
Source: https://github.com/apache/parquet-format (parquet.thrift) and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any

from eagle3_agent.preflight.files import open_regular

MAGIC = b"PAR1"

_FOOTER_LIMIT = 64 * 1024 * 1024
_DEPTH_LIMIT = 32


class BadFile(Exception):
    """What is wrong with the file, in words."""


@dataclass(frozen=True)
class Table:
    rows: int
    columns: tuple[str, ...]
    """Top-level column names."""
    values: dict[str, int] = field(default_factory=dict)
    """Top-level column -> values of its first leaf over all rows (an empty list counts as one)."""
    bytes: int = 0
    """Of all columns, before compression."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Top-level column of integers -> least and largest value, where every chunk tells."""


def read(path: str) -> Table:
    """Raises BadFile."""
    try:
        file, size = open_regular(path)
        with file:
            return _interpret(_Compact(_footer(file, size)).struct())
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError):
        raise BadFile("has a footer that cannot be understood") from None


def _footer(file: IO[bytes], size: int) -> bytes:
    if size < 12 or file.read(4) != MAGIC:
        raise BadFile("does not begin like parquet (PAR1)")
    file.seek(size - 8)
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC:
        raise BadFile("does not end like parquet (PAR1): it is cut off")
    if not 0 < length <= min(size - 12, _FOOTER_LIMIT):
        raise BadFile(f"says that its footer has {length} bytes, in a file of {size}")
    file.seek(size - 8 - length)
    return file.read(length)


def _interpret(meta: dict[int, Any]) -> Table:
    values: dict[str, int] = {}
    plain = 0
    told: dict[str, list[tuple[int, int] | None]] = {}
    for group in meta.get(4, []):
        counted = set()
        for chunk in group[1]:
            details = chunk[3]
            plain += details[6]
            name = details[3][0].decode("utf-8", "replace")
            if name not in counted:
                counted.add(name)
                values[name] = values.get(name, 0) + details[5]
                told.setdefault(name, []).append(_range(details))
    ranges = {
        name: (min(r[0] for r in known), max(r[1] for r in known))
        for name, chunks in told.items()
        if len(known := [r for r in chunks if r is not None]) == len(chunks)
    }
    return Table(int(meta[3]), _top_level(meta[2]), values, plain, ranges)


def _range(details: dict[int, Any]) -> tuple[int, int] | None:
    """Least and largest of a chunk of integers, from its statistics (max_value, min_value)."""
    width = {1: 4, 2: 8}.get(details.get(1, 0))  # INT32, INT64
    told = details.get(12)
    if width is None or not isinstance(told, dict):
        return None
    high, low = told.get(5, told.get(1)), told.get(6, told.get(2))
    if not (isinstance(high, bytes) and isinstance(low, bytes) and len(high) == len(low) == width):
        return None
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)


def _top_level(schema: list[dict[int, Any]]) -> tuple[str, ...]:
    """Names of the root's children; the schema is a tree flattened depth first."""
    names = []
    at = 1
    while at < len(schema):
        names.append(schema[at][4].decode("utf-8", "replace"))
        rest = 1
        while rest:
            rest += schema[at].get(5, 0) - 1
            at += 1
    return tuple(names)


class _Compact:
    """Thrift's compact protocol into dicts (field id -> value), lists, ints and bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _DEPTH_LIMIT:
            raise IndexError("nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self._signed()
            # a boolean field's value is its type
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):  # i16, i32, i64
            return self._signed()
        if kind == 8:
            return self._take(self._unsigned())
        if kind in (9, 10):  # list, set
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (1, 2, 3):  # a boolean or byte as an item of a list
            return self._byte()
        if kind == 7:
            return self._take(8)
        if kind == 11:
            return self._map(depth)
        raise IndexError(f"unknown type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4
        if count == 15:
            count = self._unsigned()
        if count > len(self._data):
            raise IndexError("a list longer than the footer")
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        count = self._unsigned()
        if count > len(self._data):
            raise IndexError("a map longer than the footer")
        kinds = self._byte() if count else 0
        return [
            (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1))
            for _ in range(count)
        ]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError("past the end")
        self._at += count
        return self._data[self._at - count : self._at]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise IndexError("a number too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
