"""The limits of this process, which a run's worker inherits from the agent that starts it.

Sources: getrlimit(2), core(5), the kernel's cgroup-v1/pids and cgroup-v2 documents.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .host_facts import above

_ROOT = Path("/")


@dataclass(frozen=True)
class Limit:
    """None is unlimited."""

    soft: int | None = None
    hard: int | None = None


@dataclass(frozen=True)
class PidsLimit:
    """A cgroup's bound on processes and threads."""

    limit: int
    used: int
    where: str


@dataclass(frozen=True)
class LimitsFacts:
    uid: int
    files: Limit = field(default_factory=Limit)
    locked: Limit = field(default_factory=Limit)
    """Bytes."""
    processes: Limit = field(default_factory=Limit)
    """Threads count."""
    core: Limit = field(default_factory=Limit)
    """Bytes of a core file."""
    core_pattern: str = ""
    threads: int = 0
    """Of this user's processes, as far as they can be seen."""
    pids: PidsLimit | None = None
    """The tightest of those above this process."""
    infiniband: tuple[str, ...] = ()
    """Devices that NCCL would find."""
    cores: int = 1


def look() -> LimitsFacts:
    """Of this process, its user and its cgroup."""
    return LimitsFacts(
        uid=os.getuid(),
        files=_limit(resource.RLIMIT_NOFILE),
        locked=_limit(resource.RLIMIT_MEMLOCK),
        processes=_limit(resource.RLIMIT_NPROC),
        core=_limit(resource.RLIMIT_CORE),
        core_pattern=_text(_ROOT / "proc/sys/kernel/core_pattern"),
        threads=_threads(_ROOT / "proc", os.getuid()),
        pids=min(pids_limits(), key=lambda p: p.limit - p.used, default=None),
        infiniband=_names(_ROOT / "sys/class/infiniband"),
        cores=len(os.sched_getaffinity(0)),
    )


def _limit(kind: int) -> Limit:
    soft, hard = (None if v == resource.RLIM_INFINITY else v for v in resource.getrlimit(kind))
    return Limit(soft, hard)


def _threads(proc: Path, uid: int) -> int:
    """Threads of this user's processes: what RLIMIT_NPROC counts."""
    count = 0
    for name in _names(proc):
        if not name.isdecimal():
            continue
        folder = proc / name
        try:
            if folder.stat().st_uid == uid:
                # after the command's name, which may hold anything: state is field 3
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                count += int(fields[17])
        except (OSError, ValueError, IndexError):
            continue
    return count


def pids_limits(root: Path = _ROOT) -> Iterator[PidsLimit]:
    """The bounds of the cgroups above this process, either version."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        unified = number == "0" and not controllers
        if not unified and "pids" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if unified else "pids")
        for folder in above(mount, place):
            limit, used = _text(folder / "pids.max"), _text(folder / "pids.current")
            if limit.isdecimal() and used.isdecimal():
                yield PidsLimit(int(limit[:19]), int(used[:19]), str(folder))


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
