"""A line of training data: its value, or what is wrong with it."""

from __future__ import annotations

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
