"""Host memory that this process may still take: the machine's, or less under a cgroup's limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def available(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP, mount: Path = _MOUNT) -> int | None:
    """Bytes that can be had without swapping or being killed; None when nobody says.

    MemAvailable, and of every cgroup above this process (version 2, as containers have it) the
    limit less what cannot be dropped (anonymous and shared memory, such as states on their way to
    the disk): a page cache full of sample files does not count.
    """
    found = [_field(meminfo, "MemAvailable:", 1024), *_headrooms(cgroup, mount)]
    known = [value for value in found if value is not None]
    return max(0, min(known)) if known else None


def _headrooms(cgroup: Path, mount: Path) -> Iterator[int | None]:
    place = _field_text(cgroup, "0::")
    if place is None:
        return
    folder = mount / place.lstrip("/")
    for at in (folder, *folder.parents):
        if at != mount and mount not in at.parents:
            return
        try:
            limit = (at / "memory.max").read_text().strip()
        except OSError:
            continue
        anonymous = _field(at / "memory.stat", "anon ", 1)
        shared = _field(at / "memory.stat", "shmem ", 1) or 0
        if limit.isdecimal() and anonymous is not None:
            yield int(limit) - anonymous - shared


def _field(path: Path, name: str, unit: int) -> int | None:
    text = _field_text(path, name)
    try:
        return int(text.split()[0]) * unit if text else None
    except (ValueError, IndexError):
        return None


def _field_text(path: Path, name: str) -> str | None:
    """What follows ``name`` on the line that begins with it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((line[len(name) :].strip() for line in lines if line.startswith(name)), None)
