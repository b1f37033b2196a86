"""Where toasts stand: over the newest events, never over the row of keys or the run's lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.notifications import Notification

#: Cells of a toast's edge and padding.
_FRAME = 4
_WIDEST, _SHARE = 64, 0.62
#: Of the screen's rows: on the smallest screen that is the block of events.
_HIGHEST = 0.25

#: Above the last row, ``_HIGHEST`` of the screen high; ``crowded_out`` keeps it from overflowing.
TOASTS = """
ToastRack { margin-bottom: 1; max-height: 25%; overflow-y: hidden; }
Toast { width: 64; max-width: 62%; margin-top: 0; padding: 0 1;
    background: $panel; border-left: outer $success; }
Toast .toast--title { color: $foreground; text-style: bold; }
Toast.-information .toast--title { color: $success; }
Toast.-warning { border-left: outer $warning; }
Toast.-warning .toast--title { color: $warning; }
Toast.-error { border-left: outer $error; }
Toast.-error .toast--title { color: $error; }
"""


def crowded_out(told: Sequence[Notification], width: int, height: int) -> list[Notification]:
    """The older ones for which a screen of this size has no room; never the newest."""
    cells = max(8, int(min(_WIDEST, width * _SHARE)) - _FRAME)
    room = int(height * _HIGHEST)
    gone: list[Notification] = []
    for number, notification in enumerate(reversed(told)):
        room -= len(textwrap.wrap(notification.message, cells)) + bool(notification.title)
        if number and (room < 0 or gone):
            gone.append(notification)
    return gone
