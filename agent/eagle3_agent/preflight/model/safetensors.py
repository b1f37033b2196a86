"""One safetensors file against its own header, without reading any tensor.

A file is 8 bytes (little-endian length of the header), the header (JSON:
tensor -> dtype, shape, data_offsets [begin, end) into the rest) and the data,
which the offsets cover without hole or overlap.
Source: the format section of https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import IO, Any

from eagle3_agent.preflight.files import open_regular
from eagle3_agent.preflight.text import number

#: The reference implementation refuses a larger header.
HEADER_LIMIT = 100_000_000

_WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_LFS_POINTER = b"version https://git-lfs"


class BadFile(Exception):
    """What is wrong with the file, in words with figures."""


@dataclass(frozen=True)
class Contents:
    size: int
    """Bytes of the file."""
    tensors: frozenset[str]
    dtype: str = ""
    """Of the first floating tensor: ``float32``, ``bfloat16``, ``float16``, or empty."""


def read(path: str) -> Contents:
    """Check header and size.  Raises BadFile; never blocks on a FIFO, never reads the data."""
    try:
        file, size = open_regular(path)
        with file:
            return _check(file, size)
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from None


def _check(file: IO[bytes], size: int) -> Contents:
    head = file.read(len(_LFS_POINTER))
    if head == _LFS_POINTER:
        raise BadFile("is a Git LFS pointer, not weights: run git lfs pull in its folder")
    if len(head) < 8:
        raise BadFile(f"is {size} bytes long, too short for a header")
    (length,) = struct.unpack("<Q", head[:8])
    if length > min(size - 8, HEADER_LIMIT):
        raise BadFile(
            f"does not begin like safetensors: a header of {number(length)} bytes "
            f"in a file of {number(size)}"
        )
    file.seek(8)
    text = bytearray()
    while len(text) < length:
        piece = file.read(length - len(text))
        if not piece:
            raise BadFile("ends inside its header")
        text += piece
    header, data = _read_header(bytes(text))
    expected = 8 + length + data
    if expected != size:
        short = expected - size
        how = f"{number(abs(short))} bytes too {'short' if short > 0 else 'long'}"
        raise BadFile(f"is {how} ({number(size)} of {number(expected)})")
    floats = (_FLOATS[e["dtype"]] for e in header.values() if e["dtype"] in _FLOATS)
    return Contents(size, frozenset(header), next(floats, ""))


def _read_header(text: bytes) -> tuple[dict[str, Any], int]:
    """(tensor -> its sound description, bytes of data that they say)."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFile("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise BadFile("has a header that is not a JSON object")
    header.pop("__metadata__", None)
    covered = end = 0
    for name, entry in header.items():
        begin, stop = _span(name, entry)
        covered += stop - begin
        end = max(end, stop)
    if covered != end:
        raise BadFile(
            f"has tensors of {number(covered)} bytes in {number(end)}: a hole or an overlap"
        )
    return header, end


def _span(name: str, entry: Any) -> tuple[int, int]:
    try:
        begin, stop = entry["data_offsets"]
        count = math.prod(entry["shape"])
        width = _WIDTHS.get(entry["dtype"])
        sound = (
            type(begin) is type(stop) is type(count) is int
            and 0 <= begin <= stop
            and (width is None or count * width == stop - begin)
        )
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise BadFile(f"describes tensor {name[:80]!r} wrongly: shape, dtype and offsets disagree")
    return begin, stop
