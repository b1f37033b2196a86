"""Strokes that every panel is drawn with: styled rows, bars, history lines.

Rows are ``Content`` made of (text, style) parts and never parsed as markup.
Text from a host goes through ``hosttext.clean`` before it gets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Union

from rich.cells import cell_len
from textual.content import Content

from eagle3_agent.protocol.values import RunState
from eagle3_console.outcomes import MARKS, Tone
from eagle3_console.store import HISTORY, Point

DIM = "$ink-dim"
NOW = "$accent"
GOOD = "$success"
LOOK = "$warning"
BAD = "$error"
STRONG = "bold $ink-strong"
RAIL = "$ink-rail"
BAR = "$ink-bar"
SPARK = "$ink-spark"

Part = Union[str, tuple[str, str], Content]

_TONES: dict[Tone, str] = {"now": NOW, "good": GOOD, "look": LOOK, "bad": BAD, "dim": DIM}

#: Symbol and colour of a run's outcome; the word always stands beside it.
OUTCOME: dict[RunState, tuple[str, str]] = {
    state: (symbol, _TONES[tone]) for state, (symbol, tone) in MARKS.items()
}

#: Seconds between two samples that are no gap: a run's own come every two.
_PAUSE = 6.0

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"


def row(*parts: Part) -> Content:
    return Content.assemble(*parts)


def cut(content: Content, width: int) -> Content:
    """At most ``width`` cells; what did not fit is told by an ellipsis."""
    if content.cell_length <= width:
        return content
    return content.truncate(max(0, width), ellipsis=True)


def ends(left: Content, right: Content, width: int) -> Content:
    """``left`` and ``right`` at the two ends of a row; when both do not fit, the right one goes
    if it is the longer, else the left one is cut."""
    room = width - right.cell_length - 2
    if room < min(left.cell_length, width // 2):
        return cut(left, width)
    left = cut(left, room)
    return row(left, " " * (width - left.cell_length - right.cell_length), right)


def spread(items: Sequence[Content], width: int, gap: int = 3) -> list[Content]:
    """Items side by side, the rest of the row shared out between them; as many rows as needed."""
    rows: list[list[Content]] = []
    for item in (cut(i, width) for i in items):
        used = sum(i.cell_length + gap for i in rows[-1]) if rows else 0
        if rows and used + item.cell_length <= width:
            rows[-1].append(item)
        else:
            rows.append([item])
    return [_justify(line, width, gap) for line in rows]


def _justify(items: list[Content], width: int, gap: int) -> Content:
    if len(items) == 1:
        return items[0]
    free = width - sum(i.cell_length for i in items)
    # wide screens: figures stay near each other instead of drifting to the far edge
    each = min(max(gap, free // (len(items) - 1)), 6)
    return Content(" " * each).join(items)


def bar(fraction: float | None, width: int, style: str = NOW) -> list[Part]:
    """A bar in eighth blocks on its rail; unknown is an empty rail."""
    width = max(1, width)
    part = 0.0 if fraction is None or fraction != fraction else min(max(fraction, 0.0), 1.0)
    eighths = round(part * width * 8)
    if eighths == 0 and part > 0:
        eighths = 1
    if part < 1:
        eighths = min(eighths, width * 8 - 1)  # full only when it is
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_EIGHTHS[rest] if rest else "")
    empty = " " * (width - cell_len(text))
    return [(text, f"{style} on {RAIL}"), (empty, f"on {RAIL}")]


def spark(points: Sequence[Point], now: float, width: int, span: float = HISTORY) -> str:
    """The last ``span`` seconds as ``width`` columns: the mean of each, a blank for no value.

    Columns stand on a fixed grid of time, so that a bar moves left and never changes shape.
    """
    means = columns(points, now, width, span)
    return "".join(" " if m is None else _LEVELS[min(7, int(m / 100 * 8))] for m in means)


def chart(
    points: Sequence[Point], now: float, width: int, rows: int, span: float = HISTORY
) -> list[str]:
    """As ``spark``, ``rows`` high, the top row first; a value of 0 is a thin line, none a blank."""
    means = columns(points, now, width, span)
    levels = [None if m is None else max(1, round(m / 100 * 8 * rows)) for m in means]
    return ["".join(_cell(level, row) for level in levels) for row in reversed(range(rows))]


def _cell(level: int | None, row: int) -> str:
    """What a column of so many eighths shows in a row, counted from the bottom."""
    part = 0 if level is None else min(8, level - 8 * row)
    return _LEVELS[part - 1] if part > 0 else " "


def columns(points: Sequence[Point], now: float, width: int, span: float) -> list[float | None]:
    """The mean of each column's points, in percent; None where there is none."""
    if width <= 0:
        return []
    step = span / width
    first = int(now // step) - width + 1
    means: list[float | None] = [None] * width
    # half an hour of every GPU, each second: one comparison a point, a division a column
    column, low, total, count = width, (first + width) * step, 0.0, 0
    for point in reversed(points):
        if point.t < low:
            _close(means, column, total, count)
            column, total, count = int(point.t // step) - first, 0.0, 0
            low = min(point.t, (first + column) * step)
            if column < 0:
                break  # the older ones lie further left
        if point.value is not None:
            total += point.value
            count += 1
    _close(means, column, total, count)
    return _filled(means, round(_PAUSE / step))


def _close(means: list[float | None], column: int, total: float, count: int) -> None:
    """What came after the last column is not shown, nor what came before the first."""
    if count and 0 <= column < len(means):
        means[column] = min(max(total / count, 0.0), 100.0)


def _filled(means: list[float | None], most: int) -> list[float | None]:
    """Columns without a point between two samples that follow each other show the one before."""
    known = [i for i, mean in enumerate(means) if mean is not None]
    for before, after in pairwise(known):
        if after - before <= most:
            means[before + 1 : after] = [means[before]] * (after - before - 1)
    return means
