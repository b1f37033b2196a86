"""One safetensors file against its own header, without reading any tensor.

A file is 8 bytes (little-endian length of the header), the header (JSON:
tensor -> dtype, shape, data_offsets [begin, end) into the rest) and the data,
which the offsets cover without hole or overlap.
Source: the format section of https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import IO, Any

from eagle3_agent.preflight.files import LFS_POINTER, open_regular
from eagle3_agent.preflight.text import number

#: The reference implementation refuses a larger header.
HEADER_LIMIT = 100_000_000

_WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
#: Names of the input embedding in the families' checkpoints.
_EMBEDDINGS = (
    "embed_tokens.weight",
    "tok_embeddings.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "wte.weight",
)
#: No tensor has more dimensions, and none a larger file: longer products cost time for nothing.
_DIMS_MOST, _BYTES_MOST = 64, 2**62


class BadFile(Exception):
    """What is wrong with the file, in words with figures."""


@dataclass(frozen=True)
class Contents:
    size: int
    """Bytes of the file."""
    tensors: frozenset[str]
    data: int = 0
    """Bytes of all tensors."""
    dtypes: dict[str, int] = field(default_factory=dict)
    """The format's own name of a dtype, or ``other`` -> bytes of the tensors that have it."""
    dtype: str = ""
    """Of the first floating tensor: ``float32``, ``bfloat16``, ``float16``, or empty."""
    embedding: tuple[int, ...] = ()
    """Shape of the input embedding ``(rows, hidden)``, when it is in this file."""


def read(path: str) -> Contents:
    """Check header and size.  Raises BadFile; never blocks on a FIFO, never reads the data."""
    try:
        file, size = open_regular(path)
        with file:
            return _check(file, size)
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL or half of a surrogate pair
        raise BadFile("has a name that no file can have") from None


def _check(file: IO[bytes], size: int) -> Contents:
    head = file.read(len(LFS_POINTER))
    if head == LFS_POINTER:
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
    header = _parse(bytes(text))
    data = _covered(header)
    expected = 8 + length + data
    if expected != size:
        short = expected - size
        how = f"{number(abs(short))} bytes too {'short' if short > 0 else 'long'}"
        raise BadFile(f"is {how} ({number(size)} of {number(expected)})")
    return _contents(size, header, data)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        # not left to json, which would take UTF-16 as well
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadFile("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise BadFile("has a header that is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _covered(header: dict[str, Any]) -> int:
    """Bytes of data that the tensors cover, one after the other; raises BadFile."""
    spans = sorted((*_span(name, entry), name) for name, entry in header.items())
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            what = "a hole before" if begin > end else "an overlap at"
            raise BadFile(
                f"has {what} tensor {name[:80]!r}: it begins at byte {number(begin)} of the data, "
                f"the one before it ends at {number(end)}"
            )
        end = stop
    return end


def _span(name: str, entry: Any) -> tuple[int, int]:
    """(begin, end) of a tensor's bytes; a large checkpoint has hundreds of thousands of them."""
    try:
        begin, stop = entry["data_offsets"]
        shape, dtype = entry["shape"], entry["dtype"]
        width = _WIDTHS.get(dtype)
        sound = (
            type(begin) is type(stop) is int
            and 0 <= begin <= stop < _BYTES_MOST
            and type(dtype) is str
            and type(shape) is list
            and len(shape) <= _DIMS_MOST
        )
        count = 1
        for dim in shape if sound else ():
            if type(dim) is not int or not 0 <= dim < _BYTES_MOST:
                sound = False
                break
            count *= dim
        sound = sound and (width is None or count * width == stop - begin)
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise BadFile(f"describes tensor {name[:80]!r} wrongly: shape, dtype and offsets disagree")
    return begin, stop


def _contents(size: int, header: dict[str, Any], data: int) -> Contents:
    dtypes: dict[str, int] = {}
    embedding: tuple[int, ...] = ()
    for name, entry in header.items():
        begin, stop = entry["data_offsets"]
        kind = entry["dtype"] if entry["dtype"] in _WIDTHS else "other"
        dtypes[kind] = dtypes.get(kind, 0) + stop - begin
        if name.endswith(_EMBEDDINGS) and len(entry["shape"]) == 2:
            embedding = embedding or tuple(entry["shape"])
    first = next((d for d in dtypes if d in FLOATS), "")
    return Contents(size, frozenset(header), data, dtypes, FLOATS.get(first, ""), embedding)
