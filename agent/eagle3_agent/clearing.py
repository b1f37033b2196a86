"""Remove what a run wrote into its output folder: only that, only there, only if all of it fits.

A sample goes if ``manifest.jsonl`` names it with its size, and what lies beside the samples if
``extras.json`` does.  A folder is opened once and everything happens through that descriptor, so
that a name swapped meanwhile leads nowhere else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .outputs import MANIFEST, MARKER, SAMPLE

EXTRAS = "extras.json"
"""What a run wrote beside the samples: ``{"files": {NAME: {"bytes", "sha256"}}}``."""

PREPARED = "prepared"
"""The one folder that a run makes in its output folder; names in it begin with ``prepared/``."""

_BESIDE = re.compile(r"(?:sample_lengths\.json|data_config\.json|token_freq\.bin)")
_INSIDE = re.compile(
    r"(?:data-[0-9a-f]{16}\.arrow|token_freq\.pt|dataset_info\.json|state\.json)", re.ASCII
)


def _unfinished(*names: str) -> re.Pattern[str]:
    return re.compile(rf"\.(?:{'|'.join(names)})\.\d{{1,24}}\.partial", re.ASCII)


_PARTIAL = _unfinished(SAMPLE.pattern, _BESIDE.pattern, r"extras\.json")
_PARTIAL_INSIDE = _unfinished(r"data\.arrow", _INSIDE.pattern)

#: Longest marker, record of extras or manifest line that is read (bytes).
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


@dataclass(frozen=True)
class _Found:
    """The names of one folder."""

    mine: list[str]
    kept: list[str]
    bytes: int
    """Of the files that are the run's."""


def clear(folder: Path, lineage: frozenset[str], confirm: bool) -> Clearing:
    """Count what belongs to the runs of ``lineage`` in ``folder``, and remove it if ``confirm``.

    A file goes if a record names it with this size, or if the worker left it unfinished;
    ``prepared`` goes if that leaves nothing in it.  The records and the marker go last, so that a
    clearing that is cut short can be repeated.  Raises NotCleared, or OSError when a removal fails.
    """
    with ExitStack() as stack:
        fd = _open(folder)
        stack.callback(os.close, fd)
        _check_marker(fd, folder, lineage)
        extras = _extras(fd)
        beside, inside = _parted(extras or {})
        found = _sort(fd, {**dict(_manifest(fd)), **beside}, _PARTIAL)
        records = [MANIFEST, MARKER] if extras is None else [EXTRAS, MANIFEST, MARKER]
        kept = [name for name in found.kept if name not in records]

        inner = _open_prepared(fd)
        below = _Found([], [], 0)
        if inner is not None:
            stack.callback(os.close, inner)
            below = _sort(inner, inside, _PARTIAL_INSIDE)
            if below.mine or inside:
                kept.remove(PREPARED)
                kept += [f"{PREPARED}/{name}" for name in below.kept]
                if confirm:
                    _empty(fd, inner, below)
        if confirm:
            for name in [*found.mine, *records]:
                _remove(fd, name)
            os.fsync(fd)
        files, size = len(found.mine) + len(below.mine), found.bytes + below.bytes
        return Clearing(files, size, tuple(sorted(kept)[:_KEPT_SHOWN]))


# ------------------------------------------------------------------ folders


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


def _open_prepared(fd: int) -> int | None:
    """None when there is no such folder, or when its name is a link or a file's."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        inner = os.open(PREPARED, flags, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise NotCleared(f"{PREPARED} cannot be opened: {error.strerror}") from None
    return inner


def _sort(fd: int, sizes: Mapping[str, int], partial: re.Pattern[str]) -> _Found:
    """What of a folder is the run's by ``sizes``, or unfinished by its name."""
    mine: list[str] = []
    kept: list[str] = []
    total = 0
    for name in os.listdir(fd):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        fits = sizes.get(name) == info.st_size or partial.fullmatch(name)
        if stat.S_ISREG(info.st_mode) and fits:
            mine.append(name)
            total += info.st_size
        else:
            kept.append(name)
    return _Found(mine, kept, total)


def _empty(fd: int, inner: int, below: _Found) -> None:
    """Remove the run's files of ``prepared``, and the folder itself if nothing else is in it."""
    for name in below.mine:
        _remove(inner, name)
    if below.kept:
        return
    with suppress(FileNotFoundError):
        named = os.stat(PREPARED, dir_fd=fd, follow_symlinks=False)
        if os.path.samestat(named, os.fstat(inner)):
            try:
                os.rmdir(PREPARED, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOTDIR):  # changed meanwhile
                    raise


def _remove(fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)  # the name itself, never what a symlink points to


# ------------------------------------------------------------------ marker and records


def _plain(fd: int, name: str) -> IO[bytes]:
    """Raises OSError, also for what is no plain file; waits for nobody to write into a pipe."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no plain file", name)
    return open(file, "rb")


def _check_marker(fd: int, folder: Path, lineage: frozenset[str]) -> None:
    try:
        with _plain(fd, MARKER) as stream:
            run = json.loads(stream.read(_LINE_MAX))["run"]
    except FileNotFoundError:
        raise NotCleared(f"{folder} has no {MARKER}: no run wrote its samples there") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotCleared(f"{folder / MARKER} cannot be understood: {error!r:.200}") from None
    if run not in lineage:
        raise NotCleared(f"{folder} belongs to run {run!s:.40}, not to this one")


def _manifest(fd: int) -> Iterator[tuple[str, int]]:
    """(file, bytes) of each line; a line that cannot be read owns nothing."""
    try:
        stream = _plain(fd, MANIFEST)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotCleared(f"{MANIFEST} cannot be opened: {error.strerror}") from None
    with stream:
        while line := stream.readline(_LINE_MAX):
            try:
                body = json.loads(line)
                name, size = body["file"], body["bytes"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if isinstance(name, str) and SAMPLE.fullmatch(name) and isinstance(size, int):
                yield name, size


def _extras(fd: int) -> dict[str, int] | None:
    """Name below the folder -> bytes; None, which owns nothing, where no record can be read."""
    try:
        with _plain(fd, EXTRAS) as stream:
            files = json.loads(stream.read(_LINE_MAX))["files"]
        return {name: int(body["bytes"]) for name, body in files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _parted(extras: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Those beside the samples, and those in ``prepared``; a name that no run writes is neither."""
    beside: dict[str, int] = {}
    inside: dict[str, int] = {}
    for name, size in extras.items():
        folder, slash, rest = name.partition("/")
        if _BESIDE.fullmatch(name):
            beside[name] = size
        elif slash and folder == PREPARED and _INSIDE.fullmatch(rest):
            inside[rest] = size
    return beside, inside
