"""Stream a JSON-lines file up to a number of bytes, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from eagle3_agent import jsonline

from .tally import Counter, Limits, Tally

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
        line, length = jsonline.take(file, limit - taken)
        if line == b"":
            break
        number += 1
        taken += length
        if line is None or line.strip():  # a blank line is no row
            counter.add(f"line {number}", jsonline.parse(line))
    return Part(counter.result(), taken, whole=True)
