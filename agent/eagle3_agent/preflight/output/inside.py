"""What stands in an output folder already: whose samples, how many, and what else."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from eagle3_agent.outputs import MANIFEST, MARKER, SAMPLE
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.protocol import ProtocolError, from_json

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
class Inside:
    """The content of an output folder."""

    marker: Marked | None = None
    marker_problem: str = ""
    samples: int = 0
    """Sample files by name."""
    kept: int = 0
    """Sample files that the manifest lists with their present size: a resume keeps them."""
    kept_bytes: int = 0
    strangers: tuple[str, ...] = ()
    """Other files that a trainer would take for samples: names that end in ``pt``."""


def look(path: str) -> Inside:
    """Raises OSError when the folder cannot be listed."""
    samples = 0
    sizes: dict[str, int] = {}
    strangers: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if SAMPLE.fullmatch(entry.name):
                samples += 1
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
            elif entry.name.endswith("pt") and len(strangers) < 100 and not entry.is_dir():
                strangers.append(entry.name)
    marker, problem = _read_marker(os.path.join(path, MARKER))
    listed = _manifest(os.path.join(path, MANIFEST))
    kept = [size for name, size in listed.items() if sizes.get(name) == size]
    names = tuple(sorted(strangers)[:10])
    return Inside(marker, problem, samples, len(kept), sum(kept), names)


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
