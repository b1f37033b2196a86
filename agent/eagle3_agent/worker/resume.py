"""Which samples of earlier attempts stay: those whose files are what the manifest says.

The manifest names the tokens and the mask that a file was made from, its shape
and the sha256 of all of it, so that an equal checksum proves its content; a
name, a date or a size alone proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eagle3_agent.protocol.events import Note, Progress

from . import manifest
from .engines.base import Emit
from .manifest import Entry, Marker
from .plan import Plan

_NAMED = 10
_TOLD = 1.0
_NOTED = 30.0


@dataclass
class Kept:
    """What the check found; indexes of samples that need no work, and files that are known."""

    indexes: set[int] = field(default_factory=set)
    tokens: int = 0
    bytes: int = 0
    known: set[str] = field(default_factory=set)
    """Files that are as their line says, kept or to be replaced."""
    broken: dict[str, str] = field(default_factory=dict)
    """File -> why it is not what its line says."""


def check(
    folder: Path,
    marker: Marker,
    plan: Plan,
    emit: Emit,
    clock: Callable[[], float] = time.monotonic,
) -> Kept:
    """Read every file that the plan could keep or would replace.

    Tells how far it is: a large folder takes as long as the disk needs to read it.
    """
    kept = Kept()
    entries = [*plan.same, *plan.changed]
    if not entries:
        return kept
    pace = _Pace(plan, sum(entry.bytes for entry in entries), emit, clock)
    same = len(plan.same)
    for place, (entry, why) in enumerate(zip(entries, manifest.all_intact(folder, entries))):
        why = _misfit(entry, marker) or why
        if why:
            kept.broken[entry.file] = why
        else:
            kept.known.add(entry.file)
        if not why and place < same:
            kept.indexes.add(entry.index)
            kept.tokens += entry.tokens
            kept.bytes += entry.bytes
        pace.checked(entry, len(kept.indexes))
    _tell_outcome(kept, plan, pace.rate(), emit)
    return kept


def _misfit(entry: Entry, marker: Marker) -> str:
    """Why the line cannot be of a sample of this folder; "" when it can."""
    if entry.file != manifest.file_name(entry.index, marker.output_format):
        return f"its line is of row {entry.index}"
    mine = (len(marker.layers), marker.hidden, marker.dtype)
    theirs = (entry.layers, entry.hidden, entry.dtype)
    if mine != theirs:
        return "its line says {} layers of {} in {}, the folder's are {} of {} in {}".format(
            *theirs, *mine
        )
    return ""


def set_aside(folder: Path, kept: Kept, there: dict[int, Entry], plan: Plan, emit: Emit) -> None:
    """Move what lies under a sample's name and is not what a line says; the folder is locked.

    Files of rows that this run does not have (fewer samples are asked for, say) stay as they are.
    Raises OSError.
    """
    seen = {entry.index for entry in (*plan.same, *plan.changed)}
    other = {entry.file for index, entry in there.items() if index not in seen}
    moved = manifest.set_aside(folder, kept.known | other)
    if moved:
        named = [f"{old} -> {new}" for old, new in moved.items()]
        _note(
            emit,
            "warning",
            f"{len(moved)} files under names of samples are not those that {manifest.MANIFEST} "
            f"speaks of and were moved aside, to be deleted when nobody misses them: "
            f"{_listed(named)}",
        )


def _tell_outcome(kept: Kept, plan: Plan, rate: float, emit: Emit) -> None:
    _note(
        emit,
        "info",
        f"kept {len(kept.indexes)} samples of earlier attempts ({kept.tokens} tokens, "
        f"{kept.bytes / 2**30:.2f} GiB), read at {rate / 1e9:.2f} GB/s",
    )
    if kept.broken:
        named = [f"{file} ({why})" for file, why in kept.broken.items()]
        _note(
            emit,
            "warning",
            f"{len(named)} samples are made again, since their files are not what the manifest "
            f"says: {_listed(named)}",
        )
    if plan.changed:
        _note(
            emit,
            "info",
            f"{len(plan.changed)} samples are made again, since their rows have other tokens or "
            "another loss mask now (data.seq_length?)",
        )


class _Pace:
    """Progress once a second, a line for the log twice a minute."""

    def __init__(self, plan: Plan, size: int, emit: Emit, clock: Callable[[], float]) -> None:
        self._plan, self._size, self._emit, self._clock = plan, size, emit, clock
        self._files = self._bytes = 0
        self._began = self._told = self._noted = clock()
        count = len(plan.same) + len(plan.changed)
        _note(emit, "info", f"checking {count} files ({size / 2**30:.2f} GiB) of earlier attempts")

    def rate(self) -> float:
        """Bytes a second."""
        return self._bytes / max(self._clock() - self._began, 1e-9)

    def checked(self, entry: Entry, kept: int) -> None:
        self._files += 1
        self._bytes += entry.bytes
        now = self._clock()
        if now - self._told >= _TOLD:
            self._told = now
            self._emit(Progress(time.time(), kept, self._plan.total, self._plan.skipped, 0, 0))
        if now - self._noted >= _NOTED:
            self._noted = now
            rate = self.rate()
            left = max(0, self._size - self._bytes) / rate
            _note(
                self._emit,
                "info",
                f"checked {self._files} files at {rate / 1e9:.2f} GB/s, {left:.0f} s left",
            )


def _listed(named: list[str]) -> str:
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def _note(emit: Emit, level: Literal["info", "warning"], text: str) -> None:
    emit(Note(time.time(), level, text))
