"""``?``: every key that works on the screen below, from its bindings; typing filters them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3_console import themes
from eagle3_console.hosttext import crop
from eagle3_console.keys import Key, Keys
from eagle3_console.widgets import ink

#: Cells of the keys' names and of the word on what they do, at most.
_KEYS, _DOES = 18, 18


class HelpScreen(ModalScreen[None]):
    """``facts`` are (name, sentence) of what is set by the environment."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > Vertical { width: 92; max-width: 96%; height: auto; max-height: 92%;
        border: round $accent; background: $surface; padding: 0 1; }
    HelpScreen #asked { height: 1; margin: 0 1; }
    HelpScreen VerticalScroll { height: auto; padding: 0 1;
        scrollbar-size-vertical: 1; background: $surface; }
    HelpScreen #rows { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "clear or close", show=False),
        Binding("question_mark,enter", "close", "close", show=False),
        Binding("backspace", "erase", "erase", show=False),
        Binding("ctrl+u", "clear", "clear", show=False),
        Binding("down,ctrl+n", "scroll(1)", "down", show=False),
        Binding("up", "scroll(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "scroll(10)", "page down", show=False),
        Binding("pageup,ctrl+b", "scroll(-10)", "page up", show=False),
        Binding("home", "scroll(-1000)", "top", show=False),
        Binding("end", "scroll(1000)", "bottom", show=False),
    ]

    def __init__(self, keys: Keys, off: frozenset[str], facts: Mapping[str, str]) -> None:
        """``off`` names actions that could not be done now."""
        super().__init__()
        self.keys, self.off, self.facts = keys, off, facts
        self.asked = ""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="asked")
            with VerticalScroll(can_focus=False):
                yield Static(id="rows")

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        # border and head stay in sight, the rows between them scroll
        room = self.size.height * 92 // 100 - 3
        self.query_one(VerticalScroll).styles.max_height = max(2, room)
        self.call_after_refresh(self._draw)

    def on_key(self, event: events.Key) -> None:
        if event.is_printable and event.character:
            event.stop()
            self.asked = (self.asked + event.character)[:40]
            self._draw()

    def _draw(self) -> None:
        width = self.query_one("#rows").content_size.width or 68
        self.query_one("#asked", Static).update(self._asking(width))
        self.query_one("#rows", Static).update(Content("\n").join(self.rows(width)))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def _asking(self, width: int) -> Content:
        if not self.asked:
            left = ink.row(("KEYS", ink.STRONG), ("   type to filter", ink.DIM))
        else:
            left = ink.row(
                ("KEYS", ink.STRONG), ("   filter ", ink.DIM), (self.asked, ink.NOW), "▏"
            )
        right = "esc clears" if self.asked else "esc closes"
        return ink.ends(left, Content.styled(right, ink.DIM), width)

    def rows(self, width: int) -> list[Content]:
        """The rows that match what was typed."""
        made: list[Content] = []
        groups = (("This screen", self.keys.here), ("Everywhere", self.keys.everywhere))
        for title, keys in groups:
            found = [key for key in keys if key.matches(self.asked)]
            made += _titled(title, [row for key in found for row in self._rows_of(key, width)])
        facts = [(n, s) for n, s in self.facts.items() if self.asked.lower() in f"{n} {s}".lower()]
        made += _titled("Set outside", [row for n, s in facts for row in _fact(n, s, width)])
        return made or [Content(""), Content.styled("no key does that", ink.DIM)]

    def _columns(self) -> tuple[int, int]:
        """As wide as the widest of them all, whatever is filtered, so that nothing jumps."""
        known = (*self.keys.here, *self.keys.everywhere)
        names = max((len(" ".join(key.keys)) for key in known), default=0)
        return min(_KEYS, names + 2), min(_DOES, max((len(k.does) for k in known), default=0) + 2)

    def _rows_of(self, key: Key, width: int) -> list[Content]:
        off = key.name in self.off
        says = "not now: " + (key.says or key.does) if off else key.says
        names, does = self._columns()
        first = ink.row(
            ("  " + crop(" ".join(key.keys), names - 1).ljust(names), ink.DIM if off else ink.NOW),
            (crop(key.does, does - 1).ljust(does), ink.DIM if off else ink.STRONG),
        )
        return _beside(first, says, width)

    def action_back(self) -> None:
        if self.asked:
            self.action_clear()
        else:
            self.dismiss(None)

    def action_close(self) -> None:
        self.dismiss(None)

    def action_erase(self) -> None:
        self.asked = self.asked[:-1]
        self._draw()

    def action_clear(self) -> None:
        self.asked = ""
        self._draw()

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)


def _titled(title: str, rows: list[Content]) -> list[Content]:
    return [Content(""), Content.styled(title, f"bold {ink.NOW}"), *rows] if rows else []


def _fact(name: str, says: str, width: int) -> list[Content]:
    return _beside(Content.styled(f"  {name:<20}", ink.STRONG), says, width)


def _beside(first: Content, says: str, width: int) -> list[Content]:
    """``says`` right of ``first``, in as many rows as it needs."""
    indent = first.cell_length
    lines = textwrap.wrap(says, max(12, width - indent)) or [""]
    rest = [Content.styled(" " * indent + line, ink.DIM) for line in lines[1:]]
    return [ink.row(first, (lines[0], ink.DIM)), *rest]


def facts(theme: str) -> dict[str, str]:
    """What the environment sets, and what is chosen."""
    return {
        f"theme {themes.words(theme)}": "^t takes the next one; it is kept",
        "NO_COLOR=1": "no colour at all",
        "EAGLE3_NOTIFY=off": "no bell, no desktop notification when a run ends",
        "EAGLE3_TITLE=off": "leaves the terminal's title alone",
    }
