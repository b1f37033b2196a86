"""Shared memory that an exercise's processes made: found in their maps, removed after their end.

A process that is killed leaves its segments of /dev/shm behind, and they are host memory that
nobody owns.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from eagle3_agent import processes

_FOLDER = b"/dev/shm/"


def note(seen: set[str], above: int) -> None:
    """Add to ``seen`` the segments that the processes below ``above`` have mapped now."""
    for process in processes.descendants(above):
        seen.update(mapped(process.pid))


def mapped(pid: int) -> set[str]:
    """Paths below /dev/shm in the process's memory map; none where it cannot be read."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = [line for line in file if _FOLDER in line]
    except OSError:
        return set()
    return {
        os.fsdecode(line[line.index(_FOLDER) :].rstrip(b"\n"))
        for line in lines
        if not line.endswith(b" (deleted)\n")
    }


def remove(seen: Iterable[str]) -> None:
    """Unlink those that are still there, are this user's, and are mapped by nobody."""
    left = {path for path in seen if _ours(path)}
    if not left:
        return
    used: set[str] = set()
    for pid in processes.table():
        used |= mapped(pid)
    for path in left - used:
        try:
            os.unlink(path)
        except OSError:
            pass  # gone meanwhile


def _ours(path: str) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid()
