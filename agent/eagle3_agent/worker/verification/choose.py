"""Which samples are recomputed: the longest, the shortest, and others drawn by a seed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_agent.worker.manifest import Entry


@dataclass(frozen=True)
class Chosen:
    entry: Entry
    role: str
    """``longest``, ``shortest`` or ``drawn``."""


def new_seed() -> int:
    """Short enough to be typed."""
    return secrets.randbelow(10**6)


def choose(entries: Sequence[Entry], count: int, seed: int) -> list[Chosen]:
    """``count`` of them by index, never without the longest and the shortest; all if fewer.

    Among samples of one length the lowest index is taken.  The draw orders all indexes by a hash
    of seed and index, so that it does not depend on the version of Python.
    """
    if not entries or count <= 0:
        return []
    longest = min(entries, key=lambda e: (-e.tokens, e.index))
    shortest = min(entries, key=lambda e: (e.tokens, e.index))
    roles = {shortest.index: "shortest", longest.index: "longest"}
    for entry in sorted(entries, key=lambda e: _lot(seed, e.index)):
        if len(roles) >= count:
            break
        roles.setdefault(entry.index, "drawn")
    return [
        Chosen(entry, roles[entry.index])
        for entry in sorted(entries, key=lambda e: e.index)
        if entry.index in roles
    ]


def _lot(seed: int, index: int) -> bytes:
    return hashlib.sha256(f"{seed}:{index}".encode()).digest()
