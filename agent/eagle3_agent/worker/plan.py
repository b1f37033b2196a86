"""What a run will do, from one pass over the data before any model is loaded.

Bad rows are found here, in seconds, and not after the load; samples that an
earlier attempt finished are checked here, and kept only if every byte agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import manifest
from .dataset import Bad, Row
from .engines.base import Sample
from .errors import DataError
from .manifest import Entry, digest


@dataclass
class Plan:
    """Counts over all rows; ``reused`` holds the indexes that need no work."""

    total: int = 0
    tokens: int = 0
    """After truncation, of every usable row."""
    skipped: int = 0
    truncated: int = 0
    dropped: int = 0
    """Tokens that truncation cut off."""
    longest: int = 0
    reused: set[int] = field(default_factory=set)
    reused_tokens: int = 0
    bad: list[Bad] = field(default_factory=list)
    """The first of them, for a person."""

    @property
    def pending(self) -> int:
        return self.total - self.skipped - len(self.reused)


#: More bad rows than this are counted and not listed.
MAX_LISTED = 1000


def make(data: Path, rows: Iterable[Row], folder: Path) -> Plan:
    """Raises DataError when no row can be used; touches nothing."""
    plan = Plan()
    there = manifest.entries(folder)
    candidates: list[Entry] = []
    for row in rows:
        plan.total += 1
        if isinstance(row, Bad):
            plan.skipped += 1
            if len(plan.bad) < MAX_LISTED:
                plan.bad.append(row)
            continue
        length = len(row.sample.input_ids)
        plan.tokens += length
        plan.longest = max(plan.longest, length)
        if row.dropped:
            plan.truncated += 1
            plan.dropped += row.dropped
        entry = there.get(row.sample.index)
        if entry is not None and same_row(entry, row.sample):
            candidates.append(entry)
    if not plan.total:
        raise DataError(f"{data} holds no sample: data.path must name conversations or token ids")
    if plan.skipped == plan.total:
        raise DataError(
            f"none of the {plan.total} rows of {data} can be used; {plan.bad[0].reason}"
        )
    _keep_intact(plan, folder, candidates)
    return plan


def same_row(entry: Entry, sample: Sample) -> bool:
    """Whether the entry was made from exactly these tokens and this mask."""
    return entry.row == digest(sample.input_ids) and entry.mask == digest(sample.loss_mask)


def _keep_intact(plan: Plan, folder: Path, candidates: list[Entry]) -> None:
    for entry, why in zip(candidates, manifest.all_intact(folder, candidates)):
        if not why:
            plan.reused.add(entry.index)
            plan.reused_tokens += entry.tokens
