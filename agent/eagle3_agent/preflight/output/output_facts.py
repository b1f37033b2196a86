"""The output folder: can it be written, how much room is there, what stands in it already.

The write probe leaves nothing behind: a hidden file is written, synced, renamed
and removed, in the folder or where the folder would be made.
"""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass

from eagle3_agent.outputs import MANIFEST, MARKER, SAMPLE
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.protocol import ProtocolError, from_json

_PROBE_BYTES = 64 * 1024
_MARKER_LIMIT = 1024 * 1024
_MANIFEST_LIMIT = 512 * 1024 * 1024


@dataclass(frozen=True)
class Marked:
    """What ``eagle3.json`` says of the samples in a folder."""

    model: str
    data: str
    layers: tuple[int, ...]
    output_format: str
    run: str = ""


@dataclass(frozen=True)
class OutputFacts:
    path: str
    problem: str = ""
    """Why it cannot be written, in words."""
    place: str = ""
    """The folder itself, or its nearest parent that exists."""
    exists: bool = False
    real: str = ""
    """Where it really lies when a symlink leads there; empty otherwise."""
    write_seconds: float = 0.0
    """Of write + fsync + rename of 64 KiB."""
    free: int | None = None
    """Bytes that this user may still write."""
    total: int | None = None
    inodes: int | None = None
    """Free file entries; None where the filesystem has no such limit."""
    marker: Marked | None = None
    marker_problem: str = ""
    samples: int = 0
    """Sample files by name."""
    kept: int = 0
    """Sample files that the manifest lists with their present size: a resume keeps them."""
    kept_bytes: int = 0
    strangers: tuple[str, ...] = ()
    """Other files that a trainer would take for samples: names that end in ``pt``."""


def _collect(ask: Ask) -> OutputFacts:
    path = ask.profile.output.dir
    if not os.path.isabs(path):
        return OutputFacts(path, "is not a whole path: it must begin with /")
    place, problem = _nearest(path)
    if problem:
        return OutputFacts(path, problem, place)
    exists = place == path.rstrip("/") or place == path
    free, total, inodes = _room(place)
    seconds, problem = _try_to_write(place, make_folder=not exists)
    real = os.path.realpath(path)
    inside = _look_inside(path) if exists else _Inside()
    return OutputFacts(
        path=path,
        problem=problem,
        place=place,
        exists=exists,
        real=real if real != os.path.normpath(path) else "",
        write_seconds=seconds,
        free=free,
        total=total,
        inodes=inodes,
        marker=inside.marker,
        marker_problem=inside.marker_problem,
        samples=inside.samples,
        kept=inside.kept,
        kept_bytes=inside.kept_bytes,
        strangers=inside.strangers,
    )


def _nearest(path: str) -> tuple[str, str]:
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


def _room(place: str) -> tuple[int | None, int | None, int | None]:
    """(free bytes, all bytes, free inodes) of the filesystem."""
    try:
        info = os.statvfs(place)
    except OSError:
        return None, None, None
    inodes = info.f_favail if info.f_files else None
    return info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize, inodes


def _try_to_write(place: str, make_folder: bool) -> tuple[float, str]:
    """(seconds, "") or (0, what failed).  Whatever was made is removed."""
    name = f".eagle3-preflight-{os.getpid()}"
    folder = os.path.join(place, name) if make_folder else place
    first, second = os.path.join(folder, f"{name}.a"), os.path.join(folder, f"{name}.b")
    step = "no folder can be made in it"
    began = time.monotonic()
    try:
        if make_folder:
            os.mkdir(folder, 0o700)
        step = "no file can be written in it"
        fd = os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(bytes(_PROBE_BYTES))
            while view:
                view = view[os.write(fd, view) :]
            step = "a written file cannot be synced"
            os.fsync(fd)
        finally:
            os.close(fd)
        step = "a file in it cannot be renamed"
        os.rename(first, second)
    except OSError as error:
        where = "" if not make_folder else f" (in {place})"
        return 0.0, f"cannot be written: {step}{where}: {error.strerror or error}"
    finally:
        _remove(first, second, folder if make_folder else "")
    return time.monotonic() - began, ""


def _remove(first: str, second: str, folder: str) -> None:
    for path in (first, second):
        try:
            os.unlink(path)
        except OSError:
            pass  # it was never made
    if folder:
        try:
            os.rmdir(folder)
        except OSError:
            pass  # likewise


@dataclass
class _Inside:
    marker: Marked | None = None
    marker_problem: str = ""
    samples: int = 0
    kept: int = 0
    kept_bytes: int = 0
    strangers: tuple[str, ...] = ()


def _look_inside(path: str) -> _Inside:
    inside = _Inside()
    sizes: dict[str, int] = {}
    strangers: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if SAMPLE.fullmatch(entry.name):
                inside.samples += 1
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
            elif entry.name.endswith("pt") and len(strangers) < 100:
                strangers.append(entry.name)
    inside.strangers = tuple(sorted(strangers)[:10])
    inside.marker, inside.marker_problem = _read_marker(os.path.join(path, MARKER))
    for name, size in _manifest(os.path.join(path, MANIFEST)).items():
        if sizes.get(name) == size:
            inside.kept += 1
            inside.kept_bytes += size
    return inside


def _read_marker(path: str) -> tuple[Marked | None, str]:
    try:
        file, _ = open_regular(path)
        with file:
            return from_json(Marked, json.loads(file.read(_MARKER_LIMIT))), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError, ProtocolError) as error:
        return None, f"cannot be understood: {error}"[:200]


def _manifest(path: str) -> dict[str, int]:
    """File name -> bytes, the newest line of each; lines that cannot be read are passed over."""
    found: dict[str, int] = {}
    try:
        file, _ = open_regular(path)
    except OSError:
        return found
    with file:
        taken = 0
        while taken < _MANIFEST_LIMIT and (line := file.readline(64 * 1024)):
            taken += len(line)
            try:
                entry = json.loads(line)
                name, size = entry["file"], entry["bytes"]
            except (ValueError, RecursionError, KeyError, TypeError):
                continue
            if isinstance(name, str) and type(size) is int and SAMPLE.fullmatch(name):
                found[name] = size
    return found


PROBE = Probe("output", OutputFacts, _collect, timeout=15.0)
