"""What makes a row of the data usable, as far as it can be told without a tokenizer; pure.

The preflight counts with these rules and the worker reads with them, so that both judge a row
alike.  What takes a tokenizer, a vocabulary or a length limit is the worker's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: A turn's name in ShareGPT, OpenAI and other forms -> the role that chat templates know.
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_call": "assistant",
}

_RENAMED = ("role", "from", "content", "value")

#: Parts of a message that a model sees as more than their placeholder tokens.
_PICTURES = re.compile(r"(?:input_)?(?:image|video|audio)(?:_url)?")

#: What ``\ud800`` in JSON becomes: no character, and nothing that a tokenizer takes.
_HALF = re.compile("[\ud800-\udfff]")


class RowError(Exception):
    """Why one row cannot be used; begins without the row's place."""


@dataclass(frozen=True)
class Ready:
    """A row that is tokens already."""

    ids: list[int]
    mask: list[int] | None
    """0 and 1, as long as ``ids``; None where the row has none."""


@dataclass(frozen=True)
class Talk:
    """A row that is a conversation."""

    messages: list[dict[str, Any]]
    """``role`` (one of the values of ``ROLES``), ``content`` (text) and whatever else there was."""
    tools: list[Any] | None = None

    @property
    def characters(self) -> int:
        return sum(len(message["content"]) for message in self.messages)


def look(row: Any) -> Ready | Talk:
    """One parsed row, or the ValueError that parsing gave; raises RowError when it is unusable."""
    if isinstance(row, ValueError):
        raise RowError(str(row))
    if not isinstance(row, dict):
        raise RowError(f"not an object but {_kind(row)}")
    if row.get("input_ids") is not None:
        return _ready(row)
    messages = messages_of(row)
    if not any(message["role"] == "assistant" for message in messages):
        raise RowError("no assistant turn")
    return Talk(messages, _tools(row.get("tools")))


def _ready(row: dict[str, Any]) -> Ready:
    ids = row["input_ids"]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise RowError("input_ids is no list of integers")
    if not ids:
        raise RowError("empty: no token")
    _refuse_pictures(row.get("messages"))
    mask = row.get("loss_mask")
    if mask is None:
        return Ready(ids, None)
    if not isinstance(mask, list) or not all(m in (0, 1) for m in mask):
        raise RowError("loss_mask is no list of 0 and 1")
    if len(mask) != len(ids):
        raise RowError(f"loss_mask has {len(mask)} entries, input_ids {len(ids)}")
    return Ready(ids, [int(m) for m in mask])


def _refuse_pictures(messages: Any) -> None:
    """Prepared rows of a multimodal model keep their messages: the tokens are not all of it."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and _PICTURES.fullmatch(kind):
                raise RowError(f"holds a part of type {kind}, and only text is captured")


def id_outside(ids: Iterable[int], vocab: int) -> int | None:
    """The worst id that is not in a vocabulary of that many entries; None when all are."""
    low, high = min(ids), max(ids)
    if low < 0:
        return low
    return high if high >= vocab else None


def messages_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Role/content messages of a row in either form; raises RowError."""
    turns = row.get("messages") if row.get("messages") is not None else row.get("conversations")
    if not isinstance(turns, list):
        keys = ", ".join(f"{key!r:.40}" for key in list(row)[:6])
        raise RowError(f"neither input_ids, messages nor conversations is a list (keys: {keys})")
    if not turns:
        raise RowError("empty conversation")
    return [_message(turn, number) for number, turn in enumerate(turns, 1)]


def _message(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowError(f"message {number} is no object")
    name = turn.get("role") if turn.get("role") is not None else turn.get("from")
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise RowError(f"message {number} has the role {name!r:.40}")
    kept = {k: v for k, v in turn.items() if k not in _RENAMED and v is not None}
    if "tool_calls" in kept:
        kept["tool_calls"] = _parsed(kept["tool_calls"], f"message {number}: tool_calls")
    # templates know the thinking by either name
    thought = kept.get("reasoning_content") or kept.get("thinking")
    if thought:
        kept.update(reasoning_content=thought, thinking=thought)
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    text = _text(content, number, may_be_missing=bool(kept.get("tool_calls") or thought))
    half = _HALF.search(text)
    if half:
        raise RowError(f"message {number} has half of a surrogate pair: \\u{ord(half[0]):04x}")
    return {**kept, "role": role, "content": text}


def _text(content: Any, number: int, *, may_be_missing: bool) -> str:
    if content is None and may_be_missing:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        if all(isinstance(p, str) for p in parts):
            return "".join(str(p) for p in parts)
    raise RowError(f"message {number} has no text")


def _tools(tools: Any) -> list[Any] | None:
    return _parsed(tools, "tools") or None


def _parsed(value: Any, what: str) -> list[Any]:
    """A list, as it stands or as JSON text: columnar files cannot hold free objects."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RowError(f"{what} is text that is no JSON") from None
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise RowError(f"{what} is no list")
    return value


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
