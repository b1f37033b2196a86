"""Stream a JSON-lines file up to a number of bytes, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from eagle3_agent import jsonline

from .tally import Counter, Limits, Tally

#: A longer line is counted as broken and passed over.
MAX_LINE = 16 * 1024 * 1024

_MAGIC = (
    (b"\x1f\x8b", "is compressed with gzip", "Unpack it: gunzip."),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "Unpack it: unzstd."),
    (b"PK\x03\x04", "is a zip archive", "Unpack it."),
    (b"PAR1", "is a parquet file by its first bytes", "Give it a name that ends in .parquet."),
    (b"ARROW1", "is an Arrow file by its first bytes", "Name the folder of the saved dataset."),
    (b"version https://git-lfs", "is a Git LFS pointer", "Run git lfs pull in its folder."),
    (b"\xff\xfe", "is UTF-16", "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8."),
)


@dataclass(frozen=True)
class Part:
    """What was read of the file."""

    tally: Tally
    bytes: int
    whole: bool
    """The file's end or the last row that the run takes was reached."""


def why_not(head: bytes) -> tuple[str, str]:
    """(what else the file is, what to do), or two empty texts; from its first bytes."""
    for magic, problem, todo in _MAGIC:
        if head.startswith(magic):
            return problem, todo
    if head.lstrip()[:1] == b"[":
        return "is one JSON array, not one JSON object a line", "Convert it: jq -c '.[]'."
    return "", ""


def read(file: IO[bytes], limit: int, limits: Limits) -> Part:
    """Look at lines until ``limit`` bytes, the run's last sample or the end.  Raises OSError."""
    counter = Counter(limits)
    taken = number = 0
    while not counter.full():
        if taken >= limit:
            return Part(counter.result(), taken, whole=not file.read(1))
        line = file.readline(MAX_LINE)
        if not line:
            break
        number += 1
        length = len(line)
        if length == MAX_LINE and not line.endswith(b"\n"):
            length += _pass_over(file, limit - taken)
            value: Any = ValueError(f"longer than {MAX_LINE} bytes")
        elif not line.strip():
            taken += length
            continue
        else:
            value = jsonline.parse(line)
        taken += length
        counter.add(f"line {number}", value)
    return Part(counter.result(), taken, whole=True)


def _pass_over(file: IO[bytes], most: int) -> int:
    """Skip to the end of this line, or past ``most`` bytes of it; returns the bytes."""
    skipped = 0
    while skipped < most:
        piece = file.readline(1024 * 1024)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return skipped
