"""Rows of the data, judged one by one without a tokenizer and summed; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_agent import rowrules
from eagle3_agent.rowrules import RowError, Talk

#: Characters that make about one token of English text.
CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Limits:
    seq_length: int
    max_samples: int | None


@dataclass(frozen=True)
class Row:
    tokens: int
    exact: bool
    largest_id: int = -1


@dataclass(frozen=True)
class Tally:
    """The sum of the rows that were looked at."""

    rows: int = 0
    conversations: int = 0
    input_ids: int = 0
    broken: int = 0
    broken_at: str = ""
    """Where the first broken row stands: ``line 7``."""
    broken_why: str = ""
    exact_tokens: int = 0
    """Of ``input_ids`` rows, each cut at seq_length."""
    estimated_tokens: int = 0
    """Of conversations, each cut at seq_length."""
    longest: int = 0
    """Tokens of the longest row before the cut, estimated for a conversation."""
    cut: int = 0
    """Rows longer than seq_length."""
    largest_id: int = -1
    largest_id_at: str = ""


class Counter:
    """Adds rows up; ``result`` is the tally so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sums: dict[str, Any] = {}

    @property
    def rows(self) -> int:
        return int(self._sums.get("rows", 0))

    def add(self, place: str, value: Any) -> None:
        """One parsed row, or a ValueError that says why it could not be parsed."""
        self._bump("rows", 1)
        try:
            row = look(value)
        except RowError as error:
            self._bump("broken", 1)
            self._sums.setdefault("broken_at", place)
            self._sums.setdefault("broken_why", str(error)[:200])
            return
        kept = min(row.tokens, self._limits.seq_length)
        self._bump("input_ids" if row.exact else "conversations", 1)
        self._bump("exact_tokens" if row.exact else "estimated_tokens", kept)
        self._bump("cut", int(row.tokens > self._limits.seq_length))
        self._sums["longest"] = max(self._sums.get("longest", 0), row.tokens)
        if row.largest_id > self._sums.get("largest_id", -1):
            self._sums.update(largest_id=row.largest_id, largest_id_at=place)

    def full(self) -> bool:
        most = self._limits.max_samples
        return most is not None and self.rows >= most

    def result(self) -> Tally:
        return Tally(**self._sums)

    def _bump(self, name: str, by: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + by


def look(value: Any) -> Row:
    """One row; raises RowError when the worker would skip it."""
    found = rowrules.look(value)
    if isinstance(found, Talk):
        return Row(max(1, found.characters // CHARACTERS_A_TOKEN), exact=False)
    if min(found.ids) < 0:
        raise RowError(f"token id {min(found.ids)} is negative")
    return Row(len(found.ids), exact=True, largest_id=min(max(found.ids), 2**62))
