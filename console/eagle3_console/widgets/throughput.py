"""Where the time of an extraction goes: a bar in parts with its legend, and what bounds it."""

from __future__ import annotations

from itertools import accumulate

from textual.content import Content

from eagle3_agent.protocol.values import Throughput
from eagle3_console import bounds, formats
from eagle3_console.bounds import Part, Shares

from . import ink

#: Each part's stroke, to be told apart without colour, its colour, and its name on the screen.
_PARTS: dict[Part, tuple[str, str, str]] = {
    "prefill": ("█", ink.NOW, "prefill"),
    "capture": ("▓", ink.BAR, "capture"),
    "waiting": ("▒", ink.LOOK, "disk wait"),
    "other": ("░", ink.DIM, "other"),
}
_BAR = 24
#: Cells from which on the bar stands beside the words.
_WIDE = 100


def lines(told: Throughput, width: int) -> list[Content]:
    """One row, or two where there is room; none before anything was measured."""
    parts = bounds.shares(told)
    if parts is None:
        return []
    facts = [ink.row((f"{name} ", ink.DIM), figure) for name, figure in bounds.facts(told)]
    if width < _WIDE:
        return ink.spread([_words(told), *facts], width)[:1]
    bar = ink.row(*bar_parts(parts, _BAR))
    return [
        *ink.spread([bar, *legend(parts)], width)[:1],
        *ink.spread([_words(told), *facts], width)[:1],
    ]


def _words(told: Throughput) -> Content:
    waits = bounds.bound(told) == "waiting"
    return Content.styled(("! " if waits else "") + bounds.words(told), ink.LOOK if waits else "")


def legend(parts: Shares) -> list[Content]:
    """``█ prefill  82 %`` of each part."""
    items = []
    for name, share in parts.items():
        stroke, colour, title = _PARTS[name]
        figure = formats.percent(100 * share)
        items.append(ink.row((stroke, colour), (f" {title} ", ink.DIM), f"{figure:>5}"))
    return items


def bar_parts(parts: Shares, width: int) -> list[ink.Part]:
    """``width`` cells shared out by the parts' ends, so that they always fill it."""
    ends = [round(end * width) for end in accumulate(share for _, share in parts.items())]
    ends[-1] = width
    cells: list[ink.Part] = []
    for (name, _), start, end in zip(parts.items(), [0, *ends], ends):
        stroke, colour, _ = _PARTS[name]
        cells.append((stroke * max(0, end - start), colour))
    return cells
