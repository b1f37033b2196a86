"""Measurements that took long, kept by their key in the agent's state folder on this host.

A file that is damaged, another's or not there is a miss, and whatever keeping runs into is of
no consequence: the measurement is made again.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from eagle3_agent import paths
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.preflight.text import ago

#: Files that stay, the newest ones, and bytes of each.
MOST, LARGEST = 32, 1024 * 1024

#: Seconds after which it is measured again even though nothing that is known of has changed.
OLDEST = 7 * 24 * 3600.0


def folder() -> Path:
    return paths.state_dir() / "measured"


def recall(key: str, now: float) -> tuple[float, Any] | None:
    """(age in seconds, what was kept), or None."""
    if not key:
        return None
    try:
        file, size = open_regular(str(folder() / f"{key}.json"))
        with file:
            if size > LARGEST or os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            said = json.loads(file.read(LARGEST))
        if said["key"] != key:
            return None
        age = now - float(said["at"])
        return (age, said["body"]) if 0 <= age <= OLDEST else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep(key: str, at: float, body: Any) -> None:
    """Keep plain JSON values under ``key``; several agents may do so at once."""
    if not key:
        return
    text = json.dumps({"key": key, "at": at, "body": body}).encode("ascii")
    if len(text) > LARGEST:
        return
    with suppress(OSError):
        place = paths.private_dir(folder())
        partial = place / f".{key}.{os.getpid()}.{time.monotonic_ns()}"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(text)
            os.replace(partial, place / f"{key}.json")
        except OSError:
            with suppress(OSError):
                os.unlink(partial)
            raise
        _thin_out(place)


def _thin_out(place: Path) -> None:
    """Remove all but the newest, and what a killed writer left."""
    found: list[tuple[int, str]] = []
    for entry in os.scandir(place):
        with suppress(OSError):
            seen = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(seen.st_mode):
                found.append((seen.st_mtime_ns, entry.path))
    for _, path in sorted(found, reverse=True)[MOST:]:
        with suppress(OSError):
            os.unlink(path)


def when(age: float | None, took: float) -> str:
    """For a verdict: when it was measured, and what that took."""
    if age is None:
        return f"measured now, in {took:.0f} s" if took >= 1 else "measured now"
    return f"measured {ago(age)} ago, nothing changed since"
