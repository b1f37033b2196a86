"""Open a file that may be anything: a FIFO, a device, a folder, a link to nothing."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

#: How a Git LFS pointer begins: what stands for a large file that was not fetched.
LFS_POINTER = b"version https://git-lfs"


def open_regular(path: str) -> tuple[BinaryIO, int]:
    """The file and its size in bytes.  Never waits for a writer.

    Raises OSError, also (with EINVAL) for what is not a regular file, and (with ENOENT and the
    target in its text) for a symlink to nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):
            text = f"a symlink to {os.readlink(path)}, which is not there"
            raise FileNotFoundError(errno.ENOENT, text, path) from None
        raise
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return open(fd, "rb"), info.st_size
