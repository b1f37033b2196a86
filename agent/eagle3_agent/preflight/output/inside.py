"""What stands in an output folder already: whose samples, how many, and what else."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass

from eagle3_agent.outputs import MANIFEST, MARKER, SAMPLE
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.protocol import ProtocolError, from_json

_MARKER_LIMIT = 1024 * 1024
#: Seconds for each of the two parts that grow with the samples: 300,000 are read and compared in
#: 2 s on a local disk and in minutes on a network's.
_PATIENCE = 0.5
#: Files that are compared however long it takes.
_LEAST = 100
_STRIDE = 97


@dataclass(frozen=True)
class Marked:
    """What ``eagle3.json`` says of the samples in a folder."""

    model: str
    data: str
    layers: tuple[int, ...]
    output_format: str
    run: str = ""


@dataclass(frozen=True)
class Inside:
    """The content of an output folder."""

    marker: Marked | None = None
    marker_problem: str = ""
    samples: int = 0
    """Sample files by name."""
    kept: int = 0
    """Sample files that the manifest lists with their present size: a resume keeps them."""
    kept_bytes: int = 0
    exact: bool = True
    """False where there was time for a part of them: then both are what the whole comes to."""
    strangers: tuple[str, ...] = ()
    """Other files that a trainer would take for samples: names that end in ``pt``."""


def look(path: str, patience: float = _PATIENCE) -> Inside:
    """Raises OSError when the folder cannot be listed.

    ``patience`` (seconds) is what reading the manifest may take, and comparing sizes once more.
    """
    names: set[str] = set()
    strangers: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if SAMPLE.fullmatch(entry.name):
                names.add(entry.name)
            elif entry.name.endswith("pt") and len(strangers) < 100 and not entry.is_dir():
                strangers.append(entry.name)
    marker, problem = _read_marker(os.path.join(path, MARKER))
    listed, share = _manifest(os.path.join(path, MANIFEST), patience)
    there = [name for name in listed if name in names]
    sizes, compared = _kept(path, there, listed, patience)
    scale = len(there) / compared / share if compared else 1.0
    return Inside(
        marker=marker,
        marker_problem=problem,
        samples=len(names),
        kept=min(round(len(sizes) * scale), len(names)),
        kept_bytes=round(sum(sizes) * scale),
        exact=share == 1.0 and compared == len(there),
        strangers=tuple(sorted(strangers)[:10]),
    )


def _kept(
    path: str, there: list[str], listed: dict[str, int], patience: float
) -> tuple[list[int], int]:
    """Sizes of the files that are as the manifest says, and how many were compared.

    Every so-many-th first, so that what there is time for stands for the rest.
    """
    until = time.monotonic() + patience
    sizes: list[int] = []
    spread = (name for start in range(_STRIDE) for name in there[start::_STRIDE])
    for done, name in enumerate(spread):
        if done >= _LEAST and time.monotonic() > until:
            return sizes, done
        with contextlib.suppress(OSError):
            info = os.stat(os.path.join(path, name), follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and info.st_size == listed[name]:
                sizes.append(info.st_size)
    return sizes, len(there)


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


def _manifest(path: str, patience: float) -> tuple[dict[str, int], float]:
    """File name -> bytes, the newest line of each; and the share of the file that was read.

    Lines that cannot be read are passed over.
    """
    found: dict[str, int] = {}
    try:
        file, whole = open_regular(path)
    except OSError:
        return found, 1.0
    until = time.monotonic() + patience
    with file:
        taken = 0
        while line := file.readline(64 * 1024):
            taken += len(line)
            name, size = _entry(line)
            if SAMPLE.fullmatch(name):
                found[name] = size
            if time.monotonic() > until:
                break
    return found, min(1.0, taken / whole) if whole else 1.0


def _entry(line: bytes) -> tuple[str, int]:
    """(file, bytes); an empty name for a line that is no entry."""
    try:
        entry = json.loads(line)
        name, size = entry["file"], entry["bytes"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return "", 0
    return (name, size) if isinstance(name, str) and type(size) is int else ("", 0)
