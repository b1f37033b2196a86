"""Append a line to a file that others tail; read such a file from a byte offset."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .protocol import encode

#: Bytes read from a stream at once; a chunk of this size, in base64, fits a wire line.
CHUNK = 256 * 1024


def append(path: Path, event: Any) -> None:
    """Add one event: a single ``write`` on ``O_APPEND``, so lines of several writers never mix.

    Raises OSError (a full disk, say) and ProtocolError (a line past the limit).
    """
    append_bytes(path, encode(event))


def append_bytes(path: Path, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(fd, line)
        if written != len(line):
            # a full disk took part of it: end the line, so that the next one stands alone
            os.write(fd, b"\n")
            raise OSError(28, os.strerror(28), str(path))
    finally:
        os.close(fd)


def read_from(path: Path, offset: int, limit: int = CHUNK) -> bytes:
    """Up to ``limit`` bytes from ``offset``; empty at the end or when the file is not there yet."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Complete lines from ``offset``, each with the offset after it; a torn tail is left out."""
    rest = b""
    while True:
        data = read_from(path, offset + len(rest))
        if not data:
            return
        rest += data
        *whole, rest = rest.split(b"\n")
        for line in whole:
            offset += len(line) + 1
            yield offset, line
