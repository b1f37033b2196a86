"""What /dev/shm holds and has room for, and which of its files nobody has mapped or open."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.preflight.check import Ask, Probe

FOLDER = "/dev/shm"
#: Files of this many at most are listed; a folder may hold any number.
_FILES_MOST = 20_000
_KEPT = 200
_NAME = 120

#: Python's multiprocessing and with it vLLM's queues, NCCL, torch, vLLM's own.
_KNOWN = re.compile(r"psm_|nccl-|torch_|vllm|__KMP|sem\.")


@dataclass(frozen=True)
class ShmFile:
    name: str
    bytes: int
    """Of memory that it takes; a queue of 240 MiB that was hardly used takes little."""
    age: float
    """Seconds since it was last written."""
    uid: int


@dataclass(frozen=True)
class ShmFacts:
    problem: str = ""
    """Why there is no such folder to use, in words."""
    total: int = 0
    free: int = 0
    writable: bool = True
    memory: bool = True
    """It is a tmpfs: what lies there is host memory."""
    stale: tuple[ShmFile, ...] = ()
    """Files of known kinds that no process that could be looked at holds; the largest first."""
    stale_count: int = 0
    stale_bytes: int = 0
    unseen: int = 0
    """Processes that could not be looked at: a file may be theirs."""


def _collect(ask: Ask) -> ShmFacts:
    return look(FOLDER)


def look(folder: str, proc: str = "/proc") -> ShmFacts:
    """``folder`` and ``proc`` stand in a test for those of the host."""
    try:
        room = os.statvfs(folder)
        files = list(_files(folder))
    except OSError as error:
        return ShmFacts(f"cannot be used: {error.strerror}")
    held, unseen = _held(folder, proc) if files else (set(), 0)
    stale = sorted((f for inode, f in files if inode not in held), key=lambda f: (-f.bytes, f.name))
    return ShmFacts(
        total=room.f_blocks * room.f_frsize,
        free=room.f_bavail * room.f_frsize,
        writable=os.access(folder, os.W_OK | os.X_OK),
        memory=_is_memory(folder, proc),
        stale=tuple(stale[:_KEPT]),
        stale_count=len(stale),
        stale_bytes=sum(f.bytes for f in stale),
        unseen=unseen,
    )


def _files(folder: str) -> Iterator[tuple[int, ShmFile]]:
    """(inode, file) of the known kinds."""
    now = time.time()
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= _FILES_MOST:
                return
            if not _KNOWN.match(entry.name):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone since
            if stat.S_ISREG(info.st_mode):
                age, name = max(0.0, now - info.st_mtime), entry.name[:_NAME]
                yield info.st_ino, ShmFile(name, info.st_blocks * 512, age, info.st_uid)


def _held(folder: str, proc: str) -> tuple[set[int], int]:
    """Inodes that a process has mapped or open, and how many processes could not be looked at."""
    held: set[int] = set()
    unseen = 0
    for name in os.listdir(proc):
        if not name.isdecimal():
            continue
        try:
            held |= _mapped(folder, f"{proc}/{name}/maps") | _open(folder, f"{proc}/{name}/fd")
        except PermissionError:
            unseen += 1
        except OSError:
            continue  # it has ended
    return held, unseen


def _mapped(folder: str, maps: str) -> set[int]:
    start = f" {folder}/".encode()
    with open(maps, "rb") as file:
        return {int(line.split()[4]) for line in file if start in line}


def _open(folder: str, table: str) -> set[int]:
    found = set()
    for name in os.listdir(table):
        path = Path(table, name)
        try:
            if os.readlink(path).startswith(f"{folder}/"):
                found.add(path.stat().st_ino)
        except OSError:
            continue  # closed since, or its file was removed
    return found


def _is_memory(folder: str, proc: str) -> bool:
    try:
        with open(f"{proc}/self/mounts", "rb") as file:
            kinds = [line.split()[2] for line in file if line.split()[1] == folder.encode()]
    except (OSError, IndexError):
        return True
    return not kinds or kinds[-1] == b"tmpfs"


PROBE = Probe("shm", ShmFacts, _collect, timeout=5.0)
