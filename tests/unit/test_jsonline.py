"""A line of training data: its value, or what is wrong with it."""

from __future__ import annotations

import io

import pytest

from eagle3_agent import jsonline


@pytest.mark.parametrize("line", [b'{"a": 1}\n', b'{"a": 1}\r\n', b'\xef\xbb\xbf{"a": 1}\n'])
def test_line_ends_and_a_byte_order_mark_are_no_part_of_the_value(line: bytes) -> None:
    assert jsonline.parse(line) == {"a": 1}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"a": \n', "not JSON: Expecting value at column 7"),
        (b'{"a": "\xff"}\n', "not UTF-8 at byte 8"),
        (b'"\x00\x00', "not JSON: Invalid control character at column 2"),  # not UTF-16
        (b"[" * 200_000, "nested too deep"),
        (b"9" * 5000, "not JSON: Exceeds the limit"),
    ],
)
def test_a_broken_line_says_why(line: bytes, says: str) -> None:
    fault = jsonline.parse(line)
    assert isinstance(fault, ValueError)
    assert str(fault).startswith(says)


def test_a_line_up_to_the_limit_is_taken_whole() -> None:
    longest = b"x" * (jsonline.MAX_LINE - 1) + b"\n"
    file = io.BytesIO(longest + b"last")
    assert jsonline.take(file) == (longest, len(longest))
    assert jsonline.take(file) == (b"last", 4)
    assert jsonline.take(file) == (b"", 0)


def test_a_longer_line_is_passed_over_as_far_as_asked() -> None:
    longer = b"x" * (jsonline.MAX_LINE + 5_000_000) + b"\n"
    file = io.BytesIO(longer + b"next\n")
    assert jsonline.take(file) == (None, len(longer))
    assert jsonline.take(file) == (b"next\n", 5)
    file.seek(0)
    line, length = jsonline.take(file, 3_000_000)
    assert line is None
    assert jsonline.MAX_LINE + 3_000_000 <= length < len(longer)
    assert length == file.tell()
    assert str(jsonline.parse(line)) == f"longer than {jsonline.MAX_LINE} bytes"
