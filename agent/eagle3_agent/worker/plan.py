"""What a run will do, from one pass over the data before any model is loaded.

Bad rows are found here, in seconds, and not after the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .dataset import Bad, Row
from .engines.base import Sample
from .errors import DataError
from .manifest import Entry, digest


@dataclass
class Plan:
    """Counts over all rows, and what the manifest says of those that can be used."""

    total: int = 0
    tokens: int = 0
    """After truncation, of every usable row."""
    skipped: int = 0
    truncated: int = 0
    dropped: int = 0
    """Tokens that truncation cut off."""
    longest: int = 0
    same: list[Entry] = field(default_factory=list)
    """Made from exactly the tokens and the mask that the row has now."""
    changed: list[Entry] = field(default_factory=list)
    """Made from others: cut at another length, say."""
    bad: list[Bad] = field(default_factory=list)
    """The first of them, for a person."""

    @property
    def usable(self) -> int:
        return self.total - self.skipped


#: More bad rows than this are counted and not listed.
MAX_LISTED = 1000


def make(data: Path, rows: Iterable[Row], there: dict[int, Entry]) -> Plan:
    """``there`` is the output folder's manifest.  Raises DataError when no row can be used."""
    plan = Plan()
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
        if entry is not None:
            (plan.same if same_row(entry, row.sample) else plan.changed).append(entry)
    if not plan.total:
        raise DataError(f"{data} holds no sample: data.path must name conversations or token ids")
    if not plan.usable:
        raise DataError(
            f"none of the {plan.total} rows of {data} can be used; {plan.bad[0].reason}"
        )
    return plan


def same_row(entry: Entry, sample: Sample) -> bool:
    """Whether the entry was made from exactly these tokens and this mask."""
    return entry.row == digest(sample.input_ids) and entry.mask == digest(sample.loss_mask)
