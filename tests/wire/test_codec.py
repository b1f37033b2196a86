"""Lines of the wire: there and back, what an older or newer side may send, and rubbish."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, Union, cast, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_agent.protocol import MAX_LINE, Message, ProtocolError, decode_message, encode
from eagle3_agent.protocol.messages import MESSAGE_TYPES, Chunk, Hello, Start, Telemetry, Welcome
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    Gpu,
    HostSample,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)
from eagle3_console.session import Lines

PROFILE = Profile(
    "p\u202e\x1b[31m",
    HostSection("/usr/bin/python3", {"A": "b"}),
    ModelSection("/m"),
    CaptureSection((2, 15)),
    DataSection("/d", 10),
    OutputSection("/o"),
)

RECORDED = Path(__file__).parent / "recorded"


def made(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the wire knows."""
    origin, args = typing.get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([st.none() if arg is type(None) else made(arg) for arg in args])
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(made(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), made(args[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: made(hints[field.name]) for field in dataclasses.fields(hint)}
        return st.builds(cast(Any, hint), **fields)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=20),
        Any: st.none() | st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=2),
    }
    return plain[hint]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("name", sorted(MESSAGE_TYPES))
@given(data=st.data())
def test_every_message_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    message = data.draw(made(MESSAGE_TYPES[name]))
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert decode_message(line) == message


def test_every_message_type_is_registered() -> None:
    assert set(MESSAGE_TYPES.values()) == set(get_args(Message))


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.name)
def test_lines_of_every_past_version_still_decode(file: Path) -> None:
    lines = file.read_bytes().splitlines()
    assert {type(decode_message(line)).__name__ for line in lines} == {
        json.loads(line)["type"] for line in lines
    }


def test_unknown_fields_are_dropped() -> None:
    line = b'{"type":"Hello","id":1,"version":1,"new":{"deep":[1]},"read_only":true}'
    assert decode_message(line) == Hello(1, 1, "", True)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"type":"Hullo","id":1}', "Hullo"),
        (b'{"id":1}', "unknown type None"),
        (b'{"type":"Hello","id":1}', "Hello.version is missing"),
        (b'{"type":"Hello","id":"1","version":1}', "Hello.id: expected int, got str"),
        (b'{"type":"Hello","id":true,"version":1}', "Hello.id: expected int, got bool"),
        (b'{"type":"Hello","id":null,"version":1}', "Hello.id"),
        (b'{"type":"Subscribe","id":1,"run":"1","stream":"secrets"}', "Subscribe.stream"),
        (b"[]", "expected an object"),
        (b"", "not a JSON line"),
        (b"\xff\xfe{}", "not a JSON line"),
        (b"[" * 100_000, "not a JSON line"),
        # Python refuses to read so many digits, some older ones do not
        (b'{"type":' + b"1" * 5000 + b"}", "not a JSON line|unknown type"),
    ],
    ids=range(12),
)
def test_a_line_that_is_wrong_is_named(line: bytes, named: str) -> None:
    with pytest.raises(ProtocolError, match=named.replace("[", r"\[")):
        decode_message(line)


def test_a_line_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        decode_message(b" " * (MAX_LINE + 1))
    with pytest.raises(ProtocolError, match="bytes long"):
        encode(Chunk(1, 0, "x" * MAX_LINE, True))


def test_what_is_not_known_travels_as_null() -> None:
    sample = HostSample(1.0, (Gpu(0, power=float("nan")),))
    again = decode_message(encode(Telemetry(sample)))
    assert isinstance(again, Telemetry)
    assert again.sample.gpus[0].power is None


def test_no_control_character_travels_raw() -> None:
    line = encode(Start(1, PROFILE))
    assert b"\x1b" not in line
    assert decode_message(line) == Start(1, PROFILE)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_rubbish_is_refused_and_nothing_else_happens(line: bytes) -> None:
    try:
        decode_message(line)
    except ProtocolError:
        pass


@settings(deadline=None)
@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_lines_are_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    lines = Lines()
    got: list[bytes] = []
    start = 0
    for cut in [*sorted(cuts), len(data)]:
        got += lines.feed(data[start : max(cut, start)])
        start = max(cut, start)
    assert got == data.split(b"\n")[:-1]


def test_a_line_that_never_ends_is_not_kept() -> None:
    lines = Lines()
    for _ in range(MAX_LINE // 65536):
        assert lines.feed(b"x" * 65536) == []
    with pytest.raises(ProtocolError, match="longer than"):
        lines.feed(b"x")
    assert Lines().feed(b"x" * MAX_LINE + b"\n") == [b"x" * MAX_LINE]


def test_a_chunk_holds_any_byte() -> None:
    data = bytes(range(256))
    chunk = Chunk.of(3, 7, data, True)
    again = decode_message(encode(chunk))
    assert isinstance(again, Chunk)
    assert again.raw() == data
    assert dataclasses.replace(again) == chunk


def test_a_welcome_of_another_version_still_says_its_version() -> None:
    line = b'{"type":"Welcome","re":1,"version":99,"archive":"a","pid":1,"host":"h",'
    line += b'"python":"3","started":0,"now":0,"more":1}'
    message = decode_message(line)
    assert isinstance(message, Welcome)
    assert message.version == 99
