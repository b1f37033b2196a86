"""Every word that crosses the wire or is written into a run folder; pure.

``values`` are facts (a GPU, a verdict, a profile), ``events`` are lines of a
run's ``events.jsonl``, ``messages`` are what client and agent say to each
other, ``codec`` turns any of them into one JSON line and back, and ``fold``
is the one place that turns a run's events into where the run stands.
Nothing here opens a file, a socket or a process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .codec import MAX_LINE, ProtocolError, decode, dumps, encode, from_json, to_json

if TYPE_CHECKING:
    from .events import EVENT_TYPES, Event, decode_event
    from .messages import MESSAGE_TYPES, Message, decode_message

#: Imported when they are first asked for: a preflight's probes, a process each, need neither.
_LATER = {
    **dict.fromkeys(("EVENT_TYPES", "Event", "decode_event"), "events"),
    **dict.fromkeys(("MESSAGE_TYPES", "Message", "decode_message"), "messages"),
}

#: Bumped only when an existing line changes its meaning; a new optional field
#: or a new message type does not bump it.
VERSION = 1

#: Opens the agent's greeting, so that whatever a shell printed before it can be told apart.
MAGIC = b"EAGLE3-AGENT"

__all__ = [
    "EVENT_TYPES",
    "MAGIC",
    "MAX_LINE",
    "MESSAGE_TYPES",
    "VERSION",
    "Event",
    "Message",
    "ProtocolError",
    "decode",
    "decode_event",
    "decode_message",
    "dumps",
    "encode",
    "from_json",
    "to_json",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
