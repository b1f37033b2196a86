"""Which filesystem a path lies on, as this process sees it (proc(5), /proc/self/mountinfo)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_TABLE = "/proc/self/mountinfo"
_TABLE_LIMIT = 16 * 1024 * 1024

_SERVERS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb3",
    "9p",
    "virtiofs",
    "afs",
    "glusterfs",
    "fuse.glusterfs",
)
_STORES = ("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.goofys")
#: Filesystems that another machine serves: slower to open, and gone when the network is.
NETWORK = frozenset((*_SERVERS, *_STORES))
#: Likewise, and built for many writers of large files.
CLUSTER = frozenset(("lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "pvfs2"))
#: A disk that is memory.
MEMORY = frozenset(("tmpfs", "ramfs"))
#: The layers of a container's own files.
LAYERS = frozenset(("overlay", "aufs", "fuse.fuse-overlayfs"))


@dataclass(frozen=True)
class Mount:
    """One line of the table of mounts; empty where the table cannot be read."""

    point: str = ""
    kind: str = ""
    """The filesystem's type: ``ext4``, ``nfs4``, ``overlay``."""
    source: str = ""
    options: tuple[str, ...] = ()
    """Of the mount and of the filesystem below it."""

    @property
    def read_only(self) -> bool:
        return "ro" in self.options


def of(path: str) -> Mount:
    """The mount that holds an existing ``path``.  Does not touch the filesystem itself."""
    try:
        with open(_TABLE, "rb") as file:
            table = file.read(_TABLE_LIMIT)
    except OSError:
        return Mount()
    return find(os.path.realpath(path), table.decode("utf-8", "surrogateescape"))


def find(path: str, table: str) -> Mount:
    """The last of the longest mount points above ``path``: a later mount hides an earlier; pure."""
    best = Mount()
    for line in table.splitlines():
        mount = _parse(line)
        if mount is not None and _above(mount.point, path) and len(mount.point) >= len(best.point):
            best = mount
    return best


def _above(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _parse(line: str) -> Mount | None:
    """``36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/sda rw,errors=continue``"""
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(rest) < 3:
        return None
    options = dict.fromkeys((*fields[5].split(","), *rest[2].split(",")))
    return Mount(_plain(fields[4]), rest[0], _plain(rest[1]), tuple(options))


def _plain(text: str) -> str:
    """Space, tab, newline and backslash stand as three octal digits in the table."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8) & 0xFF), text)
