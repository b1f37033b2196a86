"""A log of any length: only the rows in sight are decoded and styled, those that a filter shows."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from eagle3_console.logbuffer import LineBuffer, Search
from eagle3_console.logfilter import LogFilter

#: Cells that can be scrolled to sideways.
WIDEST = 4000

_BAD = re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback|Exception)\b|\b\w+Error\b")
_LOOK = re.compile(r"\b(WARNING|WARN)\b")
_DIM = re.compile(r"\bDEBUG\b")


class LogView(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a LineBuffer; follows its end until the reader scrolls away from it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--bad", "log--look", "log--dim", "log--hit"}
    DEFAULT_CSS = """
    LogView { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    LogView .log--bad { color: $error; }
    LogView .log--look { color: $warning; }
    LogView .log--dim { color: $ink-dim; }
    LogView .log--hit { background: $warning; color: $background; text-style: bold; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("F", "follow", "follow"),
        Binding("g,home", "top", "top"),
        Binding("G,end", "bottom", "bottom"),
        Binding("j,down", "by(1)", "line down", show=False),
        Binding("k,up", "by(-1)", "line up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("right", "sideways(1)", "right", show=False),
        Binding("left", "sideways(-1)", "left", show=False),
    ]

    class Moved(Message):
        """The reader moved, or chose to follow or to stay."""

    def __init__(self, buffer: LineBuffer, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.buffer = buffer
        self.filter = LogFilter(buffer)
        self.follow = True
        self.search: Search | None = None
        self.hit: int | None = None
        """The line that a search stands on."""
        self._gone = 0
        self._widest = 0

    def update_lines(self) -> None:
        """The buffer has grown or dropped lines; call at most some times a second."""
        dropped = self.filter.gone - self._gone
        self._gone = self.filter.gone
        self._resize()
        if self.follow:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
        elif dropped:
            # the same lines stay under the reader's eyes
            self.scroll_to(
                y=max(0, self.scroll_y - dropped), animate=False, immediate=True, force=True
            )
        self.refresh()

    def _resize(self) -> None:
        self.virtual_size = Size(min(self._widest, WIDEST), len(self.filter))

    def on_resize(self) -> None:
        if self.follow:
            self.call_after_refresh(self.update_lines)

    def action_follow(self) -> None:
        self.follow = not self.follow
        self.update_lines()
        self.post_message(self.Moved())

    def action_top(self) -> None:
        self.go_to(self.buffer.first)

    def refilter(self, line: int | None) -> None:
        """Other lines are shown now; ``line`` stays in sight where the end is not followed."""
        self._gone = self.filter.gone
        self._resize()
        if self.follow or line is None:
            self.update_lines()
        else:
            self.go_to(line)

    def action_bottom(self) -> None:
        self.follow = True
        self.update_lines()
        self.post_message(self.Moved())

    def action_by(self, lines: int) -> None:
        self.follow = False
        to = self.scroll_y + lines
        self.scroll_to(y=to, animate=False, immediate=True, force=True)
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        self.action_by(pages * max(1, self.size.height - 1))

    def action_sideways(self, by: int) -> None:
        to = self.scroll_x + by * 20
        self.scroll_to(x=to, animate=False, immediate=True, force=True)

    def on_mouse_scroll_up(self) -> None:
        self.follow = False
        self.post_message(self.Moved())

    def go_to(self, line: int) -> None:
        """Show a line in the upper third, and stop following."""
        self.follow = False
        top = self.filter.row(line) - self.size.height // 3
        self.scroll_to(y=max(0, top), animate=False, immediate=True, force=True)
        self.refresh()
        self.post_message(self.Moved())

    @property
    def top_line(self) -> int:
        """The number of the line in the first row in sight."""
        line = self.filter.line(int(self.scroll_y))
        return self.buffer.end if line is None else line

    @property
    def bottom_line(self) -> int:
        """The number of the line in the last row in sight."""
        line = self.filter.line(int(self.scroll_y) + max(0, self.size.height - 1))
        return self.buffer.end - 1 if line is None else line

    def in_sight(self) -> list[str]:
        """The text of the rows in sight, whole lines."""
        top = int(self.scroll_y)
        numbers = [self.filter.line(row) for row in range(top, top + self.size.height)]
        return [self.buffer.text(number) for number in numbers if number is not None]

    def render_line(self, y: int) -> Strip:
        offset_x, offset_y = self.scroll_offset
        width = self.scrollable_content_region.width
        number = self.filter.line(offset_y + y)
        if number is None:
            return Strip.blank(width, self.rich_style)
        text = self.buffer.text(number)
        strip = Strip(self._segments(text, number))
        if strip.cell_length > self._widest:
            self._widest = min(strip.cell_length, WIDEST)
            self.call_after_refresh(self._resize)
        return strip.crop_extend(offset_x, offset_x + width, self.rich_style)

    def _segments(self, text: str, number: int) -> list[Segment]:
        base = self.rich_style + self._level(text)
        if self.search is None:
            return [Segment(text, base)]
        hit = self.get_component_rich_style("log--hit", partial=True)
        if number == self.hit:
            hit += Style(underline=True)
        return _marked(text, base, base + hit, self.search.text)

    def _level(self, text: str) -> Style:
        for pattern, name in ((_BAD, "bad"), (_LOOK, "look"), (_DIM, "dim")):
            if pattern.search(text, 0, 400):
                return self.get_component_rich_style(f"log--{name}", partial=True)
        return Style.null()


def _marked(text: str, base: Style, hit: Style, pattern: re.Pattern[str]) -> list[Segment]:
    """``text`` with what the pattern finds in it marked; at most 50 marks a line."""
    segments: list[Segment] = []
    at = 0
    for number, match in enumerate(pattern.finditer(text)):
        if match.end() == match.start() or number >= 50:
            continue
        segments.append(Segment(text[at : match.start()], base))
        segments.append(Segment(text[match.start() : match.end()], hit))
        at = match.end()
    segments.append(Segment(text[at:], base))
    return segments
