"""Every word that crosses the wire or is written into a run folder; pure.

``values`` are facts (a GPU, a verdict, a profile), ``events`` are lines of a
run's ``events.jsonl``, ``messages`` are what client and agent say to each
other, ``codec`` turns any of them into one JSON line and back, and ``fold``
is the one place that turns a run's events into where the run stands.
Nothing here opens a file, a socket or a process.
"""

from .codec import MAX_LINE, ProtocolError, decode, dumps, encode, from_json, to_json
from .events import EVENT_TYPES, Event, decode_event
from .messages import MESSAGE_TYPES, Message, decode_message

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
