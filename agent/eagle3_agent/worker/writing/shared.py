"""Host memory that the capturing process and its writers have in common."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Any

#: Linux 3.17, <linux/fcntl.h>; Python's ``fcntl`` has no names for them.
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 0x1, 0x2, 0x4


class Shared:
    """Memory without a name, which a child process gets by its descriptor.

    A memfd: the kernel bounds it by memory alone, where /dev/shm is a file system that containers
    limit to 64 MB.  It goes with the last process that has it mapped, however that ends.
    """

    def __init__(self, size: int) -> None:
        """``size`` bytes, at least 1, taken page by page as they are touched.  Raises OSError where
        there is no such memory."""
        create: Any = getattr(os, "memfd_create", None)
        if create is None:
            raise OSError("this Python knows no memfd")
        self.size = size
        self.fd: int = create("eagle3-states", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            # a mapping of a file that shrinks ends the process that reads it
            with suppress(OSError):
                fcntl.fcntl(self.fd, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
            self.map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Give no more of it away; the mapping goes with whoever uses it last.  Callable twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def attach(fd: int, size: int) -> memoryview:
    """The same memory in a child that has ``fd``, to be read only."""
    made = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
    os.close(fd)  # the mapping has a descriptor of its own
    return made
