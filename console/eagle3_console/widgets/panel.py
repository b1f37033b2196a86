"""The base of every block on a screen: a pure function of the state, drawn when it changes."""

from __future__ import annotations

from typing import ClassVar

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
    #: Whether ``lines`` depends on nothing but the state and the sizes: then it is asked once.
    PURE: ClassVar[bool] = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.state = State()
        self._drawn: list[Content] = []
        self._made: tuple[State, Size, Size, list[Content]] | None = None

    def lines(self, state: State, width: int) -> list[Content]:
        """The rows of this panel at ``width`` cells."""
        return []

    def _lines(self, width: int) -> list[Content]:
        """``lines`` of the state that is kept: asked for by the layout and the drawing alike."""
        if not self.PURE:
            return self.lines(self.state, width)
        at, whole = Size(width, self.content_size.height), self.app.size
        made = self._made
        if made is None or made[0] is not self.state or made[1:3] != (at, whole):
            self._made = made = (self.state, at, whole, self.lines(self.state, width))
        return made[3]

    def show(self, state: State) -> None:
        """Take the new state; nothing is redrawn when the rows stay the same."""
        self.state = state
        width = self.content_size.width
        if width <= 0:
            return
        after = self._lines(width)
        if len(after) != len(self._drawn):
            self.refresh(layout=True)
        elif not all(a.is_same(b) for a, b in zip(after, self._drawn)):
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self._lines(width))) if width > 0 else 1

    def render(self) -> Content:
        width = self.content_size.width
        self._drawn = [
            line.truncate(width, ellipsis=True) if line.cell_length > width else line
            for line in self._lines(width)
        ]
        return Content("\n").join(self._drawn)
