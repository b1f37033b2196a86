"""The screen without any colour, for ``NO_COLOR`` and for terminals that have none.

What colour alone would say, that a row is chosen or a button has the focus, is said by reverse
video; all the rest has its word or symbol.  https://no-color.org
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

_DEFAULT = Style.from_color(RichColor.default(), RichColor.default())
_REVERSED = _DEFAULT + Style(reverse=True)
_NO_TERMS = ("dumb", "unknown", "vt100", "vt102", "vt220", "vt320")


def wanted(env: Mapping[str, str]) -> bool:
    """Whether this environment asks for no colour: ``NO_COLOR`` not empty, or such a ``TERM``."""
    term = env.get("TERM", "")
    return bool(env.get("NO_COLOR")) or term in _NO_TERMS or term.endswith(("-mono", "-m"))


class Plain(LineFilter):
    """Drops every colour; ``theme`` tells which backgrounds mean something."""

    def __init__(self, theme: Callable[[], Theme]) -> None:
        super().__init__()
        self._theme = theme

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        marks = _marks(self._theme().name, self._theme)
        return [Segment(s.text, _plain(s.style, marks), s.control) for s in segments]


@lru_cache(8)
def _marks(name: str, theme: Callable[[], Theme]) -> frozenset[str]:
    """Backgrounds that say something: the cursor's row, a button with the focus, a search hit."""
    now = theme()
    named = (now.primary, now.accent, now.success, now.warning, now.error)
    cursor = now.variables.get("block-cursor-background")
    return frozenset(Color.parse(c).hex.lower() for c in (*named, cursor) if c)


@lru_cache(4096)
def _plain(style: Style | None, marks: frozenset[str]) -> Style | None:
    if style is None:
        return None
    behind = style.bgcolor
    if behind is not None and Color.from_rich_color(behind).hex.lower() in marks:
        return style + _REVERSED
    return style + _DEFAULT
