"""The base of every block on a screen: a pure function of the state, drawn when it changes."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from eagle3_console.store import State


class Panel(Widget):
    """Draws ``lines(state, width)``; each line is cut to the width, none wraps."""

    DEFAULT_CSS = """
    Panel { width: 1fr; height: auto; padding: 0 1; text-wrap: nowrap; text-overflow: clip; }
    """
    ALLOW_SELECT = True

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.state = State()
        self._drawn: list[Content] = []

    def lines(self, state: State, width: int) -> list[Content]:
        """The rows of this panel at ``width`` cells."""
        return []

    def show(self, state: State) -> None:
        """Take the new state; nothing is redrawn when the rows stay the same."""
        self.state = state
        width = self.content_size.width
        if width <= 0:
            return
        after = self.lines(state, width)
        if len(after) != len(self._drawn):
            self.refresh(layout=True)
        elif not all(a.is_same(b) for a, b in zip(after, self._drawn)):
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self.lines(self.state, width))) if width > 0 else 1

    def render(self) -> Content:
        width = self.content_size.width
        self._drawn = [
            line.truncate(width, ellipsis=True) if line.cell_length > width else line
            for line in self.lines(self.state, width)
        ]
        return Content("\n").join(self._drawn)
