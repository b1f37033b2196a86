"""One new file that is complete or absent: hashed as it grows, synced, then renamed."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Bytes written, sent to the disk and hashed between two looks at ``stopped``.
_PART = 1 << 23

#: ``SYNC_FILE_RANGE_WRITE`` of Linux: begin to write these pages out, and do not wait.
_BEGIN = 2


class Stopped(Exception):
    """The run ends; not an error of the file."""


class NewFile:
    """Grows under a temporary name in the folder it will stay in; a context manager.

    Left without ``keep``, whatever the reason, it is removed.
    """

    def __init__(self, temporary: Path, final: Path, stopped: Callable[[], bool]) -> None:
        """Raises OSError, also when ``temporary`` exists."""
        self._temporary, self._final, self._stopped = temporary, final, stopped
        self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._kept = False
        self.size = 0

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if not self._kept:
            self._temporary.unlink(missing_ok=True)

    def write(self, data: Any) -> None:
        """Append ``data`` (a buffer), without copying it; raises OSError or Stopped."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PART):
            if self._stopped():
                raise Stopped
            part = view[start : start + _PART]
            left = part
            while left:
                left = left[os.write(self._fd, left) :]
            # the disk is at work while this thread hashes, so that the sync has little to wait for
            begin_writeback(self._fd, self.size, len(part))
            self._hash.update(part)
            self.size += len(part)

    def keep(self) -> None:
        """The content is on the disk, then under its name; raises OSError or Stopped."""
        os.fsync(self._fd)
        if self._stopped():
            raise Stopped
        os.rename(self._temporary, self._final)
        self._kept = True

    def sha256(self) -> str:
        return self._hash.hexdigest()


def begin_writeback(fd: int, start: int, length: int) -> None:
    """Have the kernel write a range of a file out; a hint, and nothing where there is no such call.

    An error of the disk is the sync's to tell.
    """
    call = _sync_file_range()
    if call is not None:
        call(fd, start, length, _BEGIN)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # another C library or kernel
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call.restype = ctypes.c_int
    return call


def sync_file(path: Path) -> None:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
