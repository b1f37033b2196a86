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
from collections.abc import Hashable, Mapping
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
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON line: {error.__class__.__name__}") from None
    if not isinstance(body, dict):
        raise ProtocolError(f"expected an object, got {type(body).__name__}")
    tag = body.pop("type", None)
    cls = registry.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise ProtocolError(f"unknown type {tag!r}"[:120])
    return from_json(cls, body)


def from_json(cls: type[T], value: Any, where: str = "") -> T:
    """Build ``cls`` (a dataclass) from a JSON object; raises ProtocolError naming the field."""
    where = where or cls.__name__
    if not isinstance(value, dict):
        raise ProtocolError(f"{where}: expected an object, got {type(value).__name__}")
    made: dict[str, Any] = {}
    hints = _hints(typing.cast(Hashable, cls))
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in value:
            made[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{where}.{field.name} is missing")
    return cls(**made)


@functools.cache
def _hints(cls: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(args, value, where)
    if origin is typing.Literal:
        if value in args and type(value) in {type(a) for a in args}:
            return value
        raise ProtocolError(f"{where}: {value!r:.60} is none of {', '.join(map(str, args))}")
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise ProtocolError(f"{where}: expected a list, got {type(value).__name__}")
        items = [_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object, got {type(value).__name__}")
        return {str(k): _read(args[1], v, f"{where}.{k:.40}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast("type[Any]", hint), value, where)
    return _read_scalar(hint, value, where)


def _read_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None:
        if type(None) in args:
            return None
        raise ProtocolError(f"{where} is null")
    rest = [a for a in args if a is not type(None)]
    for hint in rest[:-1]:
        try:
            return _read(hint, value, where)
        except ProtocolError:
            continue
    return _read(rest[-1], value, where)


def _read_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int to Python, and never one to a reader of JSON
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise ProtocolError(f"{where}: expected {hint.__name__}, got {type(value).__name__}")
