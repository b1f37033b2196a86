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
    max_model_len: int = 2**62


@dataclass(frozen=True)
class Row:
    tokens: int
    exact: bool
    largest_id: int = -1
    learned: int | None = None
    """Tokens that its own loss mask marks, within seq_length; None without a mask."""
    asking: bool = False
    """A conversation that ends in something else than an answer."""
    hollow: bool = False
    """A conversation with a message that holds nothing."""


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
    over: int = 0
    """Rows that are longer than max_model_len when they are cut at seq_length."""
    unmasked: int = 0
    """``input_ids`` rows without a loss mask: every token is learned."""
    unlearned: int = 0
    """``input_ids`` rows whose loss mask marks no token within seq_length."""
    asking: int = 0
    """Conversations whose last message is not the assistant's."""
    hollow: int = 0
    """Conversations with a message that holds no text, call or thought."""
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
        try:
            row = look(value, self._limits.seq_length)
        except RowError as error:
            self.broken(place, str(error))
            return
        self.usable(place, row)

    def broken(self, place: str, why: str) -> None:
        """One row that the worker will skip."""
        self._bump("rows", 1)
        self._bump("broken", 1)
        self._sums.setdefault("broken_at", place)
        self._sums.setdefault("broken_why", why[:200])

    def usable(self, place: str, row: Row) -> None:
        kept = min(row.tokens, self._limits.seq_length)
        self._bump("rows", 1)
        self._bump("input_ids" if row.exact else "conversations", 1)
        self._bump("exact_tokens" if row.exact else "estimated_tokens", kept)
        self._bump("cut", int(row.tokens > self._limits.seq_length))
        self._bump("over", int(kept > self._limits.max_model_len))
        self._bump("unmasked", int(row.exact and row.learned is None))
        self._bump("unlearned", int(row.learned == 0))
        self._bump("asking", int(row.asking))
        self._bump("hollow", int(row.hollow))
        self._sums["longest"] = max(self._sums.get("longest", 0), row.tokens)
        self.largest(place, row.largest_id)

    def largest(self, place: str, token: int) -> None:
        """A token id that was seen; the largest is kept."""
        if token > self._sums.get("largest_id", -1):
            self._sums.update(largest_id=token, largest_id_at=place)

    def full(self) -> bool:
        most = self._limits.max_samples
        return most is not None and self.rows >= most

    def result(self) -> Tally:
        return Tally(**self._sums)

    def _bump(self, name: str, by: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + by


def look(value: Any, seq_length: int = 2**62) -> Row:
    """One row; raises RowError when the worker would skip it."""
    found = rowrules.look(value)
    if isinstance(found, Talk):
        return Row(
            max(1, found.characters // CHARACTERS_A_TOKEN),
            exact=False,
            asking=found.messages[-1]["role"] != "assistant",
            hollow=any(_says_nothing(m) for m in found.messages),
        )
    if min(found.ids) < 0:
        raise RowError(f"token id {min(found.ids)} is negative")
    learned = None if found.mask is None else sum(found.mask[:seq_length])
    return Row(len(found.ids), True, min(max(found.ids), 2**62), learned)


def _says_nothing(message: dict[str, Any]) -> bool:
    more = message.get("tool_calls") or message.get("reasoning_content")
    return not more and not message["content"].strip()
