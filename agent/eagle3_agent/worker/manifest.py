"""What stands in an output folder: ``eagle3.json`` (whose samples) and ``manifest.jsonl`` (which).

A sample counts as there only if its manifest line, its size, its checksum and
its row all agree; nothing is inferred from a file's name.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import journal, runs
from eagle3_agent.outputs import MANIFEST as MANIFEST
from eagle3_agent.outputs import MARKER as MARKER
from eagle3_agent.outputs import PARTIAL, SAMPLE
from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.values import OutputFormat

from .errors import OutputError

#: Written with the data, since libraries disagree by one layer about what an id means.
CONVENTION = (
    "layer i = state after decoder layer i (0-based), before the final norm: "
    "transformers' hidden_states[i + 1]"
)

_CHECKERS = 4
"""Threads that hash what is there; hashlib runs outside of the interpreter's lock."""

_AT_ONCE = 1024
"""Files whose check is queued: of a million, a queue alone would take a gigabyte."""


@dataclass(frozen=True)
class Marker:
    """``eagle3.json``: what every sample of the folder has in common."""

    format: int
    run: str
    """The run that began the folder."""
    model: str
    model_fingerprint: str
    data: str
    data_fingerprint: str
    layers: tuple[int, ...]
    convention: str
    dtype: str
    hidden: int
    output_format: OutputFormat

    def differences(self, other: Marker) -> list[str]:
        """What keeps samples of both from lying in one folder, in words."""
        found = []
        for name, label in (
            ("model_fingerprint", "model"),
            ("data_fingerprint", "data"),
            ("layers", "layers"),
            ("convention", "layer convention"),
            ("dtype", "dtype"),
            ("hidden", "hidden size"),
            ("output_format", "format"),
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                if name.endswith("_fingerprint"):
                    mine, theirs = getattr(self, label), getattr(other, label)
                    mine, theirs = (mine, theirs) if mine != theirs else ("before", "changed since")
                found.append(f"{label} ({_short(mine)} there, {_short(theirs)} asked)")
        return found

    def metadata(self) -> dict[str, str]:
        """What a sample file says of itself, where its format has a place for it.

        Nothing of the run or the time: the same sample is the same bytes, whoever resumes.
        """
        return {
            "layers": json.dumps(list(self.layers)),
            "convention": self.convention,
            "model_fingerprint": self.model_fingerprint,
            "data_fingerprint": self.data_fingerprint,
            "dtype": self.dtype,
        }


def _short(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Entry:
    """One line of ``manifest.jsonl``: a sample file that is complete and in place."""

    index: int
    file: str
    tokens: int
    bytes: int
    sha256: str
    dtype: str
    layers: int
    hidden: int
    row: str
    """sha256 of the row's token ids as little-endian int64."""
    mask: str
    """The same of its loss mask."""


def digest(values: Sequence[int]) -> str:
    """sha256 of the values as little-endian int64: what a line says of a row."""
    return hashlib.sha256(struct.pack(f"<{len(values)}q", *values)).hexdigest()


def file_name(index: int, kind: OutputFormat) -> str:
    return f"data_{index}.pt" if kind == "speculators-pt" else f"hs_{index}.safetensors"


def partial_name(file: str, pid: int) -> str:
    """Where a file grows; the trainer takes every name that ends in ``pt``, so this does not."""
    return f".{file}.{pid}.partial"


def examine(folder: Path, marker: Marker) -> Marker | None:
    """The marker of a folder that this run may write into; None for a new one.

    Touches nothing.  Raises OutputError when the folder holds samples of another model, data or
    layers, or samples and no marker, or cannot be read.
    """
    try:
        there = read_marker(folder)
        if there is None:
            _refuse_strangers(folder)
            return None
    except OSError as error:
        raise _unusable(folder, error) from error
    differences = there.differences(marker)
    if differences:
        raise OutputError(
            f"{folder} holds samples of run {there.run} that differ in {'; '.join(differences)}: "
            "choose another output.dir or clear that run"
        )
    return there


def claim(folder: Path, marker: Marker) -> int:
    """Make the folder and its marker where missing, lock it; returns the lock's descriptor.

    Raises OutputError when it cannot be written or another process writes into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        _lock(lock, folder)
        if not (folder / MARKER).exists():
            runs.write_value(folder / MARKER, marker)
        _seal(folder)
        remove_partials(folder)
    except OSError as error:
        os.close(lock)
        raise _unusable(folder, error) from error
    except OutputError:
        os.close(lock)
        raise
    return lock


def _lock(fd: int, folder: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"another process writes into {folder}: wait for it or choose another output.dir"
        ) from None
    except OSError:
        pass  # a network file system without locks; the agent's claim still holds


def _unusable(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{folder} cannot be used ({error.strerror or error}): choose another output.dir"
    )


def read_marker(folder: Path) -> Marker | None:
    """None when there is none; raises OutputError for one that cannot be understood."""
    path = folder / MARKER
    try:
        return runs.read_value(path, Marker)
    except FileNotFoundError:
        return None
    except ProtocolError as error:
        raise OutputError(
            f"{path} cannot be understood ({error}): move the folder away or choose another"
        ) from None


def _refuse_strangers(folder: Path) -> None:
    if not folder.exists():
        return
    strangers = [p.name for p in folder.iterdir() if SAMPLE.fullmatch(p.name)]
    if strangers or (folder / MANIFEST).exists():
        name = sorted(strangers)[0] if strangers else MANIFEST
        raise OutputError(
            f"{folder} holds {name} but no {MARKER}, so nobody knows what its samples are: "
            "choose another output.dir or move them away"
        )


def strangers(folder: Path, known: set[str]) -> list[str]:
    """Names, sorted, that a trainer would read as samples and that are not among ``known``.

    speculators 0.3 and 0.4 train from every name that ends in ``pt``, later ones from
    ``hs_*.safetensors``.  Raises OSError.
    """
    names = (path.name for path in folder.iterdir())
    return sorted(
        name
        for name in names
        if name not in known and (name.endswith("pt") or SAMPLE.fullmatch(name))
    )


def remove_partials(folder: Path) -> None:
    """Delete what a killed process left half-written; only while the folder is locked.

    Raises OSError.
    """
    for path in folder.iterdir():
        if PARTIAL.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink()


def set_aside(folder: Path, known: set[str]) -> dict[str, str]:
    """Rename sample files that are not among ``known``; returns their old names and the new ones.

    A trainer would read them under either name of a sample, and does not read the new one; nothing
    is deleted, since whoever put it there may want it back.  Raises OSError.
    """
    moved = {}
    for name in sorted(path.name for path in folder.iterdir()):
        if not SAMPLE.fullmatch(name) or name in known:
            continue
        new = f"{name}.aside"
        number = 1
        while os.path.lexists(folder / new):
            number += 1
            new = f"{name}.aside-{number}"
        os.rename(folder / name, folder / new)
        moved[name] = new
    return moved


def append(folder: Path, entry: Entry) -> None:
    """Raises OSError."""
    journal.append_bytes(folder / MANIFEST, dumps(entry).encode("ascii") + b"\n")


def entries(folder: Path) -> dict[int, Entry]:
    """The newest line of each index; torn and foreign lines are left out."""
    found: dict[int, Entry] = {}
    for entry in _read(folder / MANIFEST):
        found[entry.index] = entry
    return found


def _read(path: Path) -> Iterator[Entry]:
    for _, line in journal.lines(path):
        try:
            entry = from_json(Entry, json.loads(line))
        except (ValueError, ProtocolError, RecursionError):
            continue
        if SAMPLE.fullmatch(entry.file):
            yield entry


def _seal(folder: Path) -> None:
    """End a torn last line, so that the next one stands alone; raises OSError."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            if file.tell() == 0:
                return
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
    except FileNotFoundError:
        return
    if torn:
        journal.append_bytes(path, b"\n")


def intact(folder: Path, entry: Entry) -> str:
    """Why the entry's file is not what was written; "" when it is."""
    path = folder / entry.file
    try:
        if path.is_symlink() or not path.is_file():
            return "missing"
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{size} bytes, the manifest says {entry.bytes}"
        return "" if file_digest(path) == entry.sha256 else "its checksum differs"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def all_intact(folder: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """``intact`` of each in turn, a few at a time; whoever leaves early waits for nothing."""
    pool = ThreadPoolExecutor(_CHECKERS)
    try:
        for start in range(0, len(entries), _AT_ONCE):
            part = entries[start : start + _AT_ONCE]
            yield from pool.map(lambda entry: intact(folder, entry), part)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def file_digest(path: Path) -> str:
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            made.update(chunk)
    return made.hexdigest()
