"""Lock files of the caches that a load goes through, and who holds them.

Two kinds.  A lock of ``filelock`` (huggingface_hub, vLLM, triton, inductor, flashinfer) and of this
tool is ``flock``: the kernel lets go of it when its holder dies, and the file that stays means
nothing.  torch's ``FileBaton`` (torch/utils/file_baton.py, under ``torch_extensions``) is a file
whose existence is the lock: after a kill it stays, and the next load of that extension waits for
ever.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import processes
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.output import mounts

#: Lock files looked at in each cache.
_MOST = 2000
_LISTED = 16


@dataclass(frozen=True)
class Baton:
    """A ``FileBaton`` that is there."""

    path: str
    device: int
    inode: int
    modified: float
    """Epoch seconds: when its maker began."""
    age: float
    """Seconds since then, by this host's clock."""
    holder: int = 0
    """A process that has it open; 0 where none was seen."""
    unseen: int = 0
    """Processes whose open files cannot be read: one of them could have it open."""
    network: str = ""
    """The type of the network mount that it is on: its maker may be on another host."""
    ours: bool = True
    """It belongs to this agent's user, or the agent is root."""


@dataclass(frozen=True)
class Held:
    """A ``flock`` that a living process holds."""

    path: str
    pid: int
    user: str
    command: str


@dataclass(frozen=True)
class LockFacts:
    batons: tuple[Baton, ...] = ()
    held: tuple[Held, ...] = ()
    looked_at: tuple[str, ...] = ()
    """The caches that are there."""
    cut: bool = False
    """A cache holds more than is looked at."""


def _collect(ask: Ask) -> LockFacts:
    environ = {**os.environ, **ask.profile.host.env}
    extensions = os.path.realpath(torch_extensions(environ))
    hub = os.path.realpath(hub_locks(environ))
    found, cut = _files(_batons(extensions))
    locks, more = _files(_under(hub))
    openers, unseen = _openers({(s.st_dev, s.st_ino) for _, s in found}) if found else ({}, 0)
    batons = [_describe(path, info, openers, unseen) for path, info in found]
    looked_at = [p for p in (extensions, hub) if os.path.isdir(p)]
    return LockFacts(tuple(batons[:_LISTED]), _held(locks), tuple(looked_at), cut or more)


def torch_extensions(environ: Mapping[str, str]) -> str:
    """Where torch builds extensions (torch.utils.cpp_extension.get_default_build_root)."""
    chosen = environ.get("TORCH_EXTENSIONS_DIR")
    return chosen or os.path.join(_cache(environ), "torch_extensions")


def hub_locks(environ: Mapping[str, str]) -> str:
    """Where huggingface_hub keeps its locks (huggingface_hub.constants)."""
    home = environ.get("HF_HOME") or os.path.join(_cache(environ), "huggingface")
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return os.path.join(os.path.expanduser(hub or os.path.join(home, "hub")), ".locks")


def _cache(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")


def _batons(root: str) -> Iterator[str]:
    """``ROOT/EXTENSION/lock`` and ``ROOT/py311_cu128/EXTENSION/lock``."""
    for above in _folders(root):
        yield os.path.join(above, "lock")
        for below in _folders(above):
            yield os.path.join(below, "lock")


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))[:_MOST]
    except OSError:
        return []


def _under(root: str) -> Iterator[str]:
    """``ROOT/models--NAME/ETAG.lock``"""
    for folder in _folders(root):
        try:
            with os.scandir(folder) as entries:
                yield from sorted(e.path for e in entries if e.name.endswith(".lock"))
        except OSError:
            continue


def _files(candidates: Iterator[str]) -> tuple[list[tuple[str, os.stat_result]], bool]:
    """Those that are plain files, and whether there were more than are looked at."""
    found: list[tuple[str, os.stat_result]] = []
    for count, path in enumerate(candidates):
        if count >= 2 * _MOST:
            return found, True
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            found.append((path, info))
    return found, False


def _describe(
    path: str, info: os.stat_result, openers: dict[tuple[int, int], int], unseen: int
) -> Baton:
    return Baton(
        path=path,
        device=info.st_dev,
        inode=info.st_ino,
        modified=info.st_mtime,
        age=max(0.0, time.time() - info.st_mtime),
        holder=openers.get((info.st_dev, info.st_ino), 0),
        unseen=unseen,
        network=network(path),
        ours=os.geteuid() in (0, info.st_uid),
    )


def _openers(wanted: set[tuple[int, int]]) -> tuple[dict[tuple[int, int], int], int]:
    """Which process has one of these files open, and how many processes cannot be asked."""
    found: dict[tuple[int, int], int] = {}
    unseen = 0
    for pid in processes.table():
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except PermissionError:
            unseen += 1
            continue
        except OSError:
            continue
        for name in names:
            key = _opened(f"{folder}/{name}")
            if key in wanted and key is not None:
                found[key] = pid
    return found, unseen


def _opened(link: str) -> tuple[int, int] | None:
    """What a descriptor is open on if its name ends in ``lock``: a stat of others may hang."""
    try:
        if not os.readlink(link).endswith("lock"):
            return None
        info = os.stat(link)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def opener(device: int, inode: int) -> int:
    """A process that has this file open now; 0 where none can be seen."""
    return _openers({(device, inode)})[0].get((device, inode), 0)


def network(path: str) -> str:
    """The type of the mount below ``path`` if another host may write there; else empty."""
    kind = mounts.of(path).kind
    shared = kind in mounts.NETWORK or kind in mounts.CLUSTER or kind.startswith("fuse.")
    return kind if shared else ""


def _held(locks: list[tuple[str, os.stat_result]]) -> tuple[Held, ...]:
    """Those of these files that somebody holds, by /proc/locks (this pid namespace's only)."""
    by_file = {(_kernel_device(info.st_dev), info.st_ino): path for path, info in locks}
    found = []
    try:
        lines = Path("/proc/locks").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return ()
    for pid, device, inode in parse_locks(lines):
        path = by_file.get((device, inode))
        if path is not None and processes.read(pid) is not None:
            found.append(Held(path, pid, processes.user(pid), processes.command(pid)))
    return tuple(found[:_LISTED])


def parse_locks(lines: list[str]) -> Iterator[tuple[int, tuple[int, int], int]]:
    """(pid, (major, minor), inode) of each lock that is held, of proc_locks(5); pure."""
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or fields[1] == "->":  # waits for one, and holds none
            continue
        found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):(\d+)", fields[5])
        if found and fields[4].isdecimal():
            yield int(fields[4]), (int(found[1], 16), int(found[2], 16)), int(found[3])


def _kernel_device(device: int) -> tuple[int, int]:
    return os.major(device), os.minor(device)


PROBE = Probe("locks", LockFacts, _collect, timeout=6.0)
