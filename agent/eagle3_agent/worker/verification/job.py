"""What every part of a verification needs: the run, its model and its whole files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import prepare, stored
from eagle3_agent.worker.dataset import Bad
from eagle3_agent.worker.engines.base import Sample
from eagle3_agent.worker.manifest import Entry, Marker
from eagle3_agent.worker.model_info import ModelInfo

from . import weights
from .weights import Ends


@dataclass(frozen=True)
class Job:
    """Read only."""

    profile: Profile
    info: ModelInfo
    marker: Marker
    good: Sequence[Entry]
    """Entries whose files are whole and fit the data."""

    @property
    def layers(self) -> tuple[int, ...]:
        """As asked, repeats repeated."""
        return self.profile.capture.layers

    def content(self, entry: Entry) -> stored.Stored:
        """Raises StoredError."""
        folder = Path(self.profile.output.dir)
        return stored.load(folder / entry.file, self.marker.output_format)

    def ends(self) -> Ends | None:
        """None where the checkpoint is not in safetensors, or these cannot be read."""
        try:
            return weights.read(self.info.path)
        except Exception:  # many types for broken shards: fewer checks, and no failure
            return None

    def rows(self, indexes: Iterable[int]) -> dict[int, Sample]:
        """The samples of these rows of the data, from one more pass over it."""
        wanted = set(indexes)
        found: dict[int, Sample] = {}
        for row in prepare.open_data(self.profile, self.info):
            if len(found) == len(wanted):
                break
            if not isinstance(row, Bad) and row.sample.index in wanted:
                found[row.sample.index] = row.sample
        return found


def neighbours(entries: Sequence[Entry], entry: Entry, most: int) -> list[int]:
    """Indexes whose rows may have been beside ``entry`` in a batch, nearest first.

    By place in the data and, since batches are packed by length, by length too.
    """

    def far(other: Entry) -> int:
        return abs(other.index - entry.index)

    near = sorted(entries, key=far)
    alike = sorted(entries, key=lambda e: (abs(e.tokens - entry.tokens), far(e)))
    order: dict[int, None] = {}
    for one, other in zip(near, alike):
        order.setdefault(one.index)
        order.setdefault(other.index)
    order.pop(entry.index, None)
    return list(order)[:most]
