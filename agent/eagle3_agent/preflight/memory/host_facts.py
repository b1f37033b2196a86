"""The host's memory as a process of this run may have it: the machine's, a cgroup's, swap's.

A worker lives in the cgroup of the agent that starts it, and so does this probe.
Sources: proc_meminfo(5), cgroups(7), the kernel's cgroup-v1/memory and cgroup-v2 documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class Ceiling:
    """A cgroup's bound; the tightest of those above this process."""

    limit: int
    used: int
    """Bytes that cannot be dropped; a page cache is not counted."""
    where: str
    """The folder under /sys that says so."""


@dataclass(frozen=True)
class HostFacts:
    """Bytes; None where the host does not say."""

    total: int | None = None
    available: int | None = None
    """MemAvailable: what can be had without swapping."""
    swap_total: int | None = None
    swap_free: int | None = None
    ceiling: Ceiling | None = None
    strict: bool = False
    """vm.overcommit_memory is 2: what is only reserved counts."""
    commit_left: int | None = None
    """CommitLimit less Committed_AS; it binds when ``strict``."""
    nodes: int = 1
    """NUMA nodes."""
    kv_space: str | None = None
    """``VLLM_CPU_KVCACHE_SPACE`` as the worker will have it."""

    @property
    def free(self) -> int | None:
        """What this run can have: the machine's, or less under a cgroup's bound."""
        found = [] if self.available is None else [self.available]
        if self.ceiling is not None:
            found.append(self.ceiling.limit - self.ceiling.used)
        return max(0, min(found)) if found else None


def look(kv_space: str | None = None, root: Path = _ROOT) -> HostFacts:
    """``root`` stands for / so that a test can make a host."""
    memory = _fields(root / "proc/meminfo", 1024)
    limit, committed = memory.get("CommitLimit"), memory.get("Committed_AS")
    left = limit - committed if limit is not None and committed is not None else None
    total = memory.get("MemTotal")
    ceilings = [c for c in _ceilings(root) if total is None or c.limit < total]
    return HostFacts(
        total=total,
        available=memory.get("MemAvailable"),
        swap_total=memory.get("SwapTotal"),
        swap_free=memory.get("SwapFree"),
        ceiling=min(ceilings, key=lambda c: c.limit - c.used, default=None),
        strict=_text(root / "proc/sys/vm/overcommit_memory") == "2",
        commit_left=left,
        nodes=_nodes(root / "sys/devices/system/node"),
        kv_space=kv_space,
    )


def _ceilings(root: Path) -> Iterator[Ceiling]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if number == "0" and not controllers:
            yield from _unified(root / "sys/fs/cgroup", place)
        elif "memory" in controllers.split(","):
            yield from _first_version(root / "sys/fs/cgroup/memory", place)


def _unified(mount: Path, place: str) -> Iterator[Ceiling]:
    for folder in above(mount, place):
        limit = _text(folder / "memory.max")
        anonymous = _fields(folder / "memory.stat", 1).get("anon")
        if limit.isdecimal() and anonymous is not None:
            yield Ceiling(int(limit[:19]), anonymous, str(folder))


def _first_version(mount: Path, place: str) -> Iterator[Ceiling]:
    for folder in above(mount, place):
        limit = _text(folder / "memory.limit_in_bytes")
        resident = _fields(folder / "memory.stat", 1).get("total_rss")
        if limit.isdecimal() and resident is not None:
            yield Ceiling(int(limit[:19]), resident, str(folder))


def above(mount: Path, place: str) -> Iterator[Path]:
    """The cgroup's folder and those above it; a container may see only the mount's root."""
    folder = mount
    yield folder
    for part in place.split("/"):
        if part not in ("", ".", ".."):
            folder = folder / part
            yield folder


def _fields(path: Path, unit: int) -> dict[str, int]:
    """``Name: 12 kB`` or ``name 12``, a line each; what is no number is left out."""
    found = {}
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0].rstrip(":")] = int(words[1][:19]) * unit
    return found


def _nodes(folder: Path) -> int:
    try:
        names = os.listdir(folder)
    except OSError:
        return 1
    return max(1, sum(n.startswith("node") and n[4:].isdecimal() for n in names))


def _text(path: Path) -> str:
    """Empty when it cannot be read; never more than a megabyte."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("ascii", "replace").strip()
    except OSError:
        return ""
