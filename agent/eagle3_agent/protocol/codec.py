"""Typed values <-> one JSON object a line.

A class is described by its dataclass fields; there is no second schema.
Unknown fields are dropped, so that an older reader understands a newer
writer; a missing field, a wrong type or an unknown ``type`` raises
:class:`ProtocolError` naming it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, Union

T = TypeVar("T")

#: A line longer than this (bytes) is refused before it is parsed.
MAX_LINE = 4 * 1024 * 1024


class ProtocolError(Exception):
    """A line that cannot be understood; the text names the type and the field."""


def to_json(value: Any) -> Any:
    """Turn dataclasses (nested too) into plain JSON values; tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN; "not known" is what it means to a reader
    return value


def dumps(value: Any) -> str:
    """One compact ASCII JSON text: escapes and bidi controls cannot travel raw."""
    return json.dumps(to_json(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def encode(value: Any) -> bytes:
    """One line for a tagged dataclass: ``{"type": "ClassName", ...}`` and a newline.

    Raises ProtocolError when the line would be longer than ``MAX_LINE``.
    """
    body = {"type": type(value).__name__, **to_json(value)}
    line = dumps(body).encode("ascii") + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"{body['type']} is {len(line)} bytes long, the limit is {MAX_LINE}")
    return line


def decode(line: bytes, registry: Mapping[str, type[Any]]) -> Any:
    """Read one tagged line with the types of ``registry``; raises ProtocolError."""
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a line of {len(line)} bytes, the limit is {MAX_LINE}")
    try:
        body = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON line: {error.__class__.__name__}") from None
    if not isinstance(body, dict):
        raise ProtocolError(f"expected an object, got {type(body).__name__}")
    tag = body.pop("type", None)
    cls = registry.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise ProtocolError(f"unknown type {tag!r}"[:120])
    return from_json(cls, body)


def _no_constant(name: str) -> Any:
    # Python reads NaN and Infinity; no line of ours holds them, and arithmetic spreads them
    raise ValueError(name)


def from_json(cls: type[T], value: Any, where: str = "") -> T:
    """Build ``cls`` (a dataclass) from a JSON object; raises ProtocolError naming the field."""
    made: T = _reader(typing.cast(Hashable, cls))(value, where or cls.__name__)
    return made


# A reader is made once per type, since a run's history is a million values of a few types.
_Reader = Callable[[Any, str], Any]


@functools.cache
def _reader(hint: Any) -> _Reader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return lambda value, where: value
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    if origin is typing.Literal:
        return _literal_reader(args)
    if origin in (list, tuple):
        return _sequence_reader(origin, _reader(args[0]))
    if origin is dict:
        return _mapping_reader(_reader(args[1]))
    if dataclasses.is_dataclass(hint):
        return _object_reader(typing.cast("type[Any]", hint))
    return _scalar_reader(hint)


def _object_reader(cls: type[Any]) -> _Reader:
    hints = typing.get_type_hints(cls)
    fields = [(f.name, _reader(hints[f.name]), _optional(f)) for f in dataclasses.fields(cls)]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object, got {type(value).__name__}")
        made = {}
        for name, reader, optional in fields:
            if name in value:
                made[name] = reader(value[name], f"{where}.{name}")
            elif not optional:
                raise ProtocolError(f"{where}.{name} is missing")
        return cls(**made)

    return read


def _optional(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _sequence_reader(kind: Any, item: _Reader) -> _Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise ProtocolError(f"{where}: expected a list, got {type(value).__name__}")
        return kind(item(each, f"{where}[{i}]") for i, each in enumerate(value))

    return read


def _mapping_reader(item: _Reader) -> _Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object, got {type(value).__name__}")
        return {str(k): item(v, f"{where}.{k:.40}") for k, v in value.items()}

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> _Reader:
    kinds = {type(a) for a in allowed}

    def read(value: Any, where: str) -> Any:
        # the type first: an unhashable or equal-but-other value (1 and True) is none of them
        if type(value) in kinds and value in allowed:
            return value
        raise ProtocolError(f"{where}: {value!r:.60} is none of {', '.join(map(str, allowed))}")

    return read


def _union_reader(args: tuple[Any, ...]) -> _Reader:
    nullable = type(None) in args
    *first, last = [_reader(a) for a in args if a is not type(None)]

    def read(value: Any, where: str) -> Any:
        if value is None:
            if nullable:
                return None
            raise ProtocolError(f"{where} is null")
        for reader in first:
            try:
                return reader(value, where)
            except ProtocolError:
                continue
        return last(value, where)

    return read


def _scalar_reader(kind: Any) -> _Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is kind:  # a bool is an int to Python, and never one to a reader of JSON
            return value
        if kind is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise ProtocolError(f"{where}: a number of {len(str(value))} digits") from None
        raise ProtocolError(f"{where}: expected {kind.__name__}, got {type(value).__name__}")

    return read
