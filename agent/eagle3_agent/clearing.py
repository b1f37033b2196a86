"""Remove the sample files that a run wrote: only those, only there, and only if all of it fits.

A folder is opened once and everything happens through that descriptor, so
that a name swapped meanwhile leads nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "eagle3.json"
MANIFEST = "manifest.jsonl"

_SAMPLE = re.compile(r"(?:data_\d{1,12}\.pt|hs_\d{1,12}\.safetensors)")
_PARTIAL = re.compile(r"\.(?:data_\d{1,12}\.pt|hs_\d{1,12}\.safetensors)\.\d{1,10}\.partial")

#: Longest marker or manifest line that is read (bytes).
_LINE_MAX = 64 * 1024

#: Names of files that stay, shown to the user.
_KEPT_SHOWN = 20


class NotCleared(Exception):
    """The folder is not what the run says it is; the text says why.  Nothing was touched."""


@dataclass(frozen=True)
class Clearing:
    """What goes (or went), and what stays."""

    files: int
    bytes: int
    kept: tuple[str, ...]
    """Names that are not the run's, the first 20."""


def clear(folder: Path, lineage: frozenset[str], confirm: bool) -> Clearing:
    """Count what belongs to the runs of ``lineage`` in ``folder``, and remove it if ``confirm``.

    A file goes if the manifest names it with this size, or if it is an unfinished sample of the
    worker; the manifest and the marker go last, so that a clearing that is cut short can be
    repeated.  Raises NotCleared, or OSError when a removal fails.
    """
    fd = _open(folder)
    try:
        _check_marker(fd, folder, lineage)
        sizes = dict(_manifest(fd))
        mine, kept, size = _sort(fd, sizes)
        if confirm:
            for name in [*mine, MANIFEST, MARKER]:
                _remove(fd, name)
            os.fsync(fd)
        return Clearing(len(mine), size, tuple(sorted(kept)[:_KEPT_SHOWN]))
    finally:
        os.close(fd)


def _open(folder: Path) -> int:
    if not folder.is_absolute():
        raise NotCleared(f"{folder} is not an absolute path")
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotCleared(f"{folder} does not exist") from None
    except OSError as error:
        if folder.is_symlink():
            text = f"{folder} is a symlink to {os.readlink(folder)}: only a real folder is cleared"
            raise NotCleared(text) from None
        raise NotCleared(f"{folder} cannot be opened: {error.strerror}") from None
    if os.fstat(fd).st_uid != os.getuid():
        os.close(fd)
        raise NotCleared(f"{folder} belongs to another user")
    return fd


def _check_marker(fd: int, folder: Path, lineage: frozenset[str]) -> None:
    try:
        data = _read_plain(fd, MARKER, _LINE_MAX)
        run = json.loads(data)["run"]
    except FileNotFoundError:
        raise NotCleared(f"{folder} has no {MARKER}: no run wrote its samples there") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotCleared(f"{folder / MARKER} cannot be understood: {error!r:.200}") from None
    if run not in lineage:
        raise NotCleared(f"{folder} belongs to run {run!s:.40}, not to this one")


def _read_plain(fd: int, name: str, limit: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    with open(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{name} is not a plain file")
        return stream.read(limit)


def _manifest(fd: int) -> Iterator[tuple[str, int]]:
    """(file, bytes) of each line; a line that cannot be read owns nothing."""
    try:
        file = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotCleared(f"{MANIFEST} cannot be opened: {error.strerror}") from None
    with open(file, "rb") as stream:
        while line := stream.readline(_LINE_MAX):
            try:
                body = json.loads(line)
                name, size = body["file"], body["bytes"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if isinstance(name, str) and _SAMPLE.fullmatch(name) and isinstance(size, int):
                yield name, size


def _sort(fd: int, sizes: dict[str, int]) -> tuple[list[str], list[str], int]:
    """(names that are the run's, names that are not, bytes of the former)."""
    mine: list[str] = []
    kept: list[str] = []
    total = 0
    for name in os.listdir(fd):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        plain = stat.S_ISREG(info.st_mode)
        if plain and (sizes.get(name) == info.st_size or _PARTIAL.fullmatch(name)):
            mine.append(name)
            total += info.st_size
        elif not (plain and name in (MARKER, MANIFEST)):
            kept.append(name)
    return mine, kept, total


def _remove(fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=fd)  # the name itself, never what a symlink points to
    except FileNotFoundError:
        pass
