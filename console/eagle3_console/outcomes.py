"""How a run's state is marked, on the command line and in the TUI alike; pure.

A symbol and a colour always go together: ✓ good, ! worth a look, ✗ failed.
The word stands beside them.
"""

from __future__ import annotations

from typing import Literal

from eagle3_agent.protocol.values import RunState

Tone = Literal["now", "good", "look", "bad", "dim"]

Line = tuple[str, str]
"""Text and the name of its colour, which may be empty."""

#: An aborted run did what it was told: worth a look, and no failure.
MARKS: dict[RunState, tuple[str, Tone]] = {
    "queued": ("·", "dim"),
    "running": ("▶", "now"),
    "completed": ("✓", "good"),
    "incomplete": ("!", "look"),
    "failed": ("✗", "bad"),
    "aborted": ("!", "look"),
    "lost": ("✗", "bad"),
}

#: Ends after which one asks what went wrong.
WRONG: frozenset[RunState] = frozenset({"failed", "incomplete", "lost"})
