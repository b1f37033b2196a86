"""Rows of the data, judged one by one without a tokenizer and summed; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Characters that make about one token of English text.
CHARACTERS_A_TOKEN = 4

_ASSISTANT = frozenset(("gpt", "assistant", "model", "bot", "chatgpt", "function_call"))
_OTHER = ("human", "user", "system", "developer", "tool", "observation", "function")
_ROLES = _ASSISTANT | frozenset(_OTHER)


class Unusable(Exception):
    """Why the worker will skip a row."""


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
        """One parsed row, or an exception that says why it could not be parsed."""
        self._bump("rows", 1)
        try:
            if isinstance(value, Exception):
                raise Unusable(str(value))
            row = look(value)
        except Unusable as error:
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


def look(row: Any) -> Row:
    """One row; raises Unusable when the worker would skip it."""
    if not isinstance(row, dict):
        raise Unusable(f"not an object but {_kind(row)}")
    if row.get("input_ids") is not None:
        return _ready(row)
    turns = row.get("messages") if row.get("messages") is not None else row.get("conversations")
    if not isinstance(turns, list):
        keys = ", ".join(map(repr, list(row)[:6]))
        raise Unusable(f"neither input_ids, messages nor conversations is a list (keys: {keys})")
    if not turns:
        raise Unusable("empty conversation")
    characters, roles = 0, set()
    for number, turn in enumerate(turns, 1):
        role, length = _turn(turn, number)
        roles.add(role)
        characters += length
    if not roles & _ASSISTANT:
        raise Unusable("no assistant turn")
    return Row(max(1, characters // CHARACTERS_A_TOKEN), exact=False)


def _ready(row: dict[str, Any]) -> Row:
    ids = row["input_ids"]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise Unusable("input_ids is no list of integers")
    if not ids:
        raise Unusable("input_ids is empty")
    if min(ids) < 0:
        raise Unusable(f"token id {min(ids)} is negative")
    mask = row.get("loss_mask")
    if mask is not None:
        if not isinstance(mask, list):
            raise Unusable("loss_mask is no list")
        if len(mask) != len(ids):
            raise Unusable(f"loss_mask has {len(mask)} entries, input_ids {len(ids)}")
    return Row(len(ids), exact=True, largest_id=min(max(ids), 2**62))


def _turn(turn: Any, number: int) -> tuple[str, int]:
    """(role, characters of its text)"""
    if not isinstance(turn, dict):
        raise Unusable(f"message {number} is no object")
    role = turn.get("role") if turn.get("role") is not None else turn.get("from")
    if not isinstance(role, str) or role not in _ROLES:
        raise Unusable(f"message {number} has the role {role!r:.40}")
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    if isinstance(content, str):
        return role, len(content)
    if content is None and turn.get("tool_calls"):
        return role, 0
    parts = content if isinstance(content, list) else [None]
    texts = [p.get("text") if isinstance(p, dict) else p for p in parts]
    if not all(isinstance(t, str) for t in texts):
        raise Unusable(f"message {number} has no text")
    return role, sum(len(t) for t in texts if isinstance(t, str))


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
