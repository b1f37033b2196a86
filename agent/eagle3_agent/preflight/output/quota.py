"""What this user may still write on a filesystem, where it keeps quotas (quotactl(2))."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from dataclasses import dataclass

#: ``quotactl_fd``: the same number on every architecture since Linux 5.14.
_SYSCALL = 443
_GET = 0x800007
_TYPES = (("user", 0), ("group", 1), ("project", 2))

#: ``struct if_dqblk`` of linux/quota.h: limits in KiB, use in bytes.
_BLOCK = struct.Struct("=8QI4x")
_KIB = 1024

#: ``FS_IOC_FSGETXATTR`` and ``struct fsxattr`` of linux/fs.h: the project that a folder belongs to.
_GET_PROJECT = 0x801C581F
_PROJECT = struct.Struct("=5I8s")


@dataclass(frozen=True)
class Quota:
    """A limit that bears on this user."""

    kind: str
    """``user``, ``group`` or ``project``."""
    id: int
    limit: int | None = None
    """Bytes, the hard limit; None where bytes are not limited."""
    used: int = 0
    files_limit: int | None = None
    files_used: int = 0

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.used)

    @property
    def files_left(self) -> int | None:
        return None if self.files_limit is None else max(0, self.files_limit - self.files_used)


def read(folder: str) -> tuple[Quota, ...]:
    """The limits for new files in ``folder``; empty where there are none or nobody says.

    A network filesystem's quota is kept by its server and does not show here.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        found = [
            parse(kind, who, answer)
            for kind, number in _TYPES
            if (who := _whose(kind, fd)) is not None
            and (answer := _ask(fd, number, who)) is not None
        ]
    finally:
        os.close(fd)
    return tuple(q for q in found if q.limit is not None or q.files_limit is not None)


def parse(kind: str, who: int, answer: bytes) -> Quota:
    """One ``struct if_dqblk`` (72 bytes) as values; pure."""
    hard, soft, used, files_hard, files_soft, files, *_ = _BLOCK.unpack(answer)
    limit, files_limit = hard or soft, files_hard or files_soft
    return Quota(kind, who, limit * _KIB if limit else None, used, files_limit or None, files)


def _whose(kind: str, fd: int) -> int | None:
    if kind == "user":
        return os.geteuid()
    if kind == "group":
        return os.getegid()
    try:
        answer = fcntl.ioctl(fd, _GET_PROJECT, bytes(_PROJECT.size))
    except OSError:
        return None
    project: int = _PROJECT.unpack(answer)[3]
    return project or None


def _ask(fd: int, number: int, who: int) -> bytes | None:
    """None where the kernel, the filesystem or a permission does not give it."""
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None
    answer = ctypes.create_string_buffer(_BLOCK.size)
    command = _GET << 8 | number
    status = call(
        ctypes.c_long(_SYSCALL),
        ctypes.c_uint(fd),
        ctypes.c_uint(command),
        ctypes.c_uint(who),
        ctypes.byref(answer),
    )
    return answer.raw if status == 0 else None
