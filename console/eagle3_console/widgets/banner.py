"""Why the link is down and what to do, under the header while it is."""

from __future__ import annotations

import textwrap

from textual.content import Content

from eagle3_console.hosttext import clean
from eagle3_console.linkstate import Offline, Reconnecting
from eagle3_console.store import State

from . import ink
from .panel import Panel


def _wait(state: State, link: Reconnecting, width: int) -> Content:
    """The wait for the next attempt, running down, and what it does not touch."""
    words = "   runs on the host go on without this console"
    begun = state.retry_from if state.retry_from is not None else state.now
    whole = link.next_at - begun
    part = (state.now - begun) / whole if whole > 0 else 1.0
    room = min(24, max(6, width - len(words) - 2))
    return ink.cut(ink.row("  ", *ink.bar(part, room, ink.LOOK), (words, ink.DIM)), width)


class LinkBanner(Panel):
    """Takes no room while the link is fine."""

    DEFAULT_CSS = """
    LinkBanner { display: none; margin-bottom: 1; }
    LinkBanner.-shown { display: block; }
    """

    def show(self, state: State) -> None:
        self.set_class(isinstance(state.link, (Offline, Reconnecting)), "-shown")
        super().show(state)

    def lines(self, state: State, width: int) -> list[Content]:
        link = state.link
        if not isinstance(link, (Offline, Reconnecting)):
            return []
        colour = ink.BAD if isinstance(link, Offline) else ink.LOOK
        symbol = "✗" if isinstance(link, Offline) else "!"
        text = f"{clean(link.why.title)}: {clean(link.why.happened)}"
        rows = [
            Content.styled(f"{symbol if i == 0 else ' '} {line}", colour)
            for i, line in enumerate(textwrap.wrap(text[:600], max(16, width - 2))[:2])
        ]
        if link.why.todo:
            rows.append(ink.row(("▸ ", ink.NOW), clean(link.why.todo)))
        if isinstance(link, Offline):
            rows.append(ink.row(("  ^r", ink.NOW), (" tries again", ink.DIM)))
        if isinstance(link, Reconnecting):
            rows.append(_wait(state, link, width))
        return rows
