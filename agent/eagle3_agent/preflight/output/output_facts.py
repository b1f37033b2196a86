"""The output folder: can it be written, how much room is there, what stands in it already."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field

from eagle3_agent.preflight.check import Ask, Probe

from . import inside, mounts, quota, surroundings
from .inside import Inside
from .mounts import Mount
from .quota import Quota
from .writing import try_to_write


@dataclass(frozen=True)
class OutputFacts:
    path: str
    problem: str = ""
    """Why it cannot be written, in words."""
    place: str = ""
    """The folder itself, or its nearest parent that exists."""
    exists: bool = False
    link: bool = False
    """The folder's own name is a symlink."""
    device: int = 0
    inode: int = 0
    """Of the folder's own name, not followed; 0 when it does not exist."""
    real: str = ""
    """Where it really lies when a symlink leads there; empty otherwise."""
    modified: float = 0.0
    """Epoch seconds."""
    at: float = 0.0
    """Epoch seconds of this look, by the host's clock."""
    mount: Mount = field(default_factory=Mount)
    write_seconds: float = 0.0
    """Of write + fsync + rename of 64 KiB."""
    free: int | None = None
    """Bytes that this user may still write, quotas of the filesystem not counted."""
    total: int | None = None
    inodes: int | None = None
    """Free file entries; None where the filesystem has no such limit."""
    quotas: tuple[Quota, ...] = ()
    inside: Inside = field(default_factory=Inside)
    holds: str = ""
    """What must not be moved and lies in it, in words, such as ``the model``."""
    outer: str = ""
    """A folder above it that holds the samples of a run."""


def _collect(ask: Ask) -> OutputFacts:
    path = ask.profile.output.dir
    if not os.path.isabs(path):
        return OutputFacts(path, "is not a whole path: it must begin with /")
    place, problem = nearest(path)
    mount = mounts.of(place)
    if problem:
        return OutputFacts(path, problem, place, mount=mount)
    exists = place == path.rstrip("/") or place == path
    free, total, inodes = room(place)
    seconds, problem = try_to_write(place, make_folder=not exists)
    real = os.path.realpath(path)
    own = os.lstat(place) if exists else None
    return OutputFacts(
        path=path,
        problem=problem,
        place=place,
        exists=exists,
        link=own is not None and stat.S_ISLNK(own.st_mode),
        device=own.st_dev if own else 0,
        inode=own.st_ino if own else 0,
        modified=own.st_mtime if own else 0.0,
        at=time.time(),
        real=real if real != os.path.normpath(path) else "",
        mount=mount,
        write_seconds=seconds,
        free=free,
        total=total,
        inodes=inodes,
        quotas=quota.read(place),
        inside=inside.look(path) if exists else Inside(),
        holds=surroundings.held(real, ask.profile) if exists else "",
        outer=surroundings.above(real),
    )


def nearest(path: str) -> tuple[str, str]:
    """(the folder or its nearest existing parent, why it cannot be a folder)."""
    place = path.rstrip("/") or "/"
    while True:
        try:
            info = os.stat(place)
        except FileNotFoundError:
            if os.path.islink(place):
                return place, f"leads through {place}, a symlink to nothing"
            place = os.path.dirname(place)
        except NotADirectoryError:
            place = os.path.dirname(place)
        except OSError as error:
            return place, f"cannot be looked at: {error.strerror or error}"
        else:
            if not stat.S_ISDIR(info.st_mode):
                return place, f"cannot be a folder: {place} is a file"
            return place, ""


def room(place: str) -> tuple[int | None, int | None, int | None]:
    """(free bytes, all bytes, free inodes) of the filesystem."""
    try:
        info = os.statvfs(place)
    except OSError:
        return None, None, None
    inodes = info.f_favail if info.f_files else None
    return info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize, inodes


PROBE = Probe("output", OutputFacts, _collect, timeout=15.0)
