"""The history as a list with a cursor: any number of runs, only the rows in sight are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from eagle3_agent.protocol.values import RunSummary, Samples
from eagle3_console import formats
from eagle3_console.hosttext import clean, crop, fit
from eagle3_console.store import State

from . import ink
from .panel import Panel
from .run import error_headline

#: Cells of the samples' column.
_SAMPLES = 13


class RunList(ScrollView, can_focus=True, inherit_bindings=False):
    """Row 0 is the newest run."""

    DEFAULT_CSS = """
    RunList { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open run"),
        Binding("up,k", "move(-1)", "newer", show=False),
        Binding("down,j", "move(1)", "older", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "edge(0)", "newest run", show=False),
        Binding("end,G", "edge(1)", "oldest run", show=False),
    ]

    class Opened(Message):
        def __init__(self, run: str) -> None:
            super().__init__()
            self.run = run

    class Pointed(Message):
        """The cursor stands on another run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: tuple[RunSummary, ...] = ()
        self.now = 0.0
        self.cursor = 0
        self.marked = ""
        """The run that another one is to be compared with; empty for none."""

    @property
    def selected(self) -> RunSummary | None:
        return self.runs[self.cursor] if self.cursor < len(self.runs) else None

    def show(self, runs: tuple[RunSummary, ...], now: float) -> None:
        """Take the runs; the cursor stays on the run it was on."""
        was = self.selected
        if runs is not self.runs and was is not None:
            places = (i for i, r in enumerate(runs) if r.run == was.run)
            self.cursor = next(places, min(self.cursor, max(0, len(runs) - 1)))
        self.runs, self.now = runs, now
        self.virtual_size = Size(self.size.width, len(runs))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        number = int(self.scroll_offset.y) + y
        if number >= len(self.runs) or width <= 0:
            return Strip.blank(max(0, width), self.rich_style)
        line = run_row(self.runs[number], width, self.now)
        chosen = bool(self.marked) and self.runs[number].run == self.marked
        if chosen:
            line = ink.row(("◆", ink.NOW), line[1:])
        if number == self.cursor:
            marked = ("◆" if chosen else "▸") + line.plain[1:].ljust(width - 1)
            line = Content.styled(marked, _cursor(self.has_focus))
        strips = Visual.to_strips(self, line, width, 1, self.visual_style)
        return strips[0].adjust_cell_length(width, self.rich_style)

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self.cursor + by * max(1, self.size.height - 1))

    def action_edge(self, last: int) -> None:
        self._go(len(self.runs) - 1 if last else 0)

    def _go(self, to: int) -> None:
        self.cursor = max(0, min(to, len(self.runs) - 1))
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False)
        self.refresh()
        self.post_message(self.Pointed())

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected.run))

    def on_click(self, event: events.Click) -> None:
        number = int(self.scroll_offset.y) + event.y
        if number >= len(self.runs):
            return
        again = number == self.cursor
        self._go(number)
        if again:
            self.action_open()


def _cursor(focused: bool) -> str:
    return "$block-cursor-foreground on $block-cursor-background" if focused else "on $panel"


def columns(width: int) -> list[tuple[str, int, bool]]:
    """(name, cells, right-aligned) of the columns that a width has room for; the last one fills."""
    wanted: list[tuple[str, int, bool, int]] = [
        ("run", 5, True, 0),
        ("att", 3, True, 0),
        ("profile", 20 if width >= 110 else 15, False, 0),
        ("engine", 12, False, 140),
        ("outcome", 12, False, 0),
        ("started", 12, False, 115),
        ("took", 8, True, 0),
        ("samples", _SAMPLES, True, 0),
        ("tok/s", 9, True, 90),
        ("written", 10, True, 150),
    ]
    kept = [(n, w, r) for n, w, r, least in wanted if width >= least]
    used = sum(w + 2 for _, w, _ in kept) + 1
    if width - used >= 8:
        kept.append(("first cause", width - used, False))
    return kept


def head_row(width: int, by: str = "", reverse: bool = False) -> Content:
    """The names of the columns; the one that the list is ordered ``by`` bears an arrow."""
    parts: list[ink.Part] = [" "]
    for number, (name, cells, right) in enumerate(columns(width)):
        parts.append("  " if number else "")
        text = name + ("▾" if reverse else "▴") if name == by else name
        parts.append((fit(text, cells, right=right), ink.STRONG if name == by else ink.DIM))
    return ink.row(*parts)


def run_row(run: RunSummary, width: int, now: float) -> Content:
    """One run; symbols and words carry what the colours say."""
    symbol, colour = ink.OUTCOME[run.state]
    texts = _texts(run, now)
    styles = {"run": ink.STRONG, "outcome": colour, "first cause": ink.BAD, "engine": ink.DIM}
    texts["outcome"] = f"{symbol} {run.state}"
    parts: list[ink.Part] = [" "]
    for number, (name, cells, right) in enumerate(columns(width)):
        parts.append("  " if number else "")
        parts.append((fit(texts[name], cells, right=right), styles.get(name, "")))
    return ink.row(*parts)


def _texts(run: RunSummary, now: float) -> dict[str, str]:
    end = run.ended if run.ended is not None else (now if run.state == "running" else None)
    took = None if run.started is None or end is None else end - run.started
    rate = run.tokens_per_second
    return {
        "run": str(run.number),
        "att": str(run.attempt),
        "profile": clean(run.profile),
        "engine": clean(run.engine),
        "started": formats.moment(run.started, now),
        "took": formats.duration(took),
        "samples": done_of(run.samples),
        "tok/s": formats.UNKNOWN if rate is None else formats.rate(rate).removesuffix(" tok/s"),
        "written": formats.size(run.bytes),
        "first cause": first_cause(run),
    }


def first_cause(run: RunSummary) -> str:
    """What happened first, in one clean line; of a run that nobody diagnosed, its own error."""
    if run.cause:
        return crop(clean(run.cause), 300)
    return error_headline(run.error, 300) if run.error else ""


def done_of(samples: Samples) -> str:
    """``412 / 1 000``, closer together where that is too long: a cut number is a wrong one."""
    if samples.total is None:
        return f"{formats.count(samples.done)} / {formats.UNKNOWN}"
    done, total = formats.count(samples.done), formats.count(samples.total)
    plain = f"{samples.done}/{samples.total}"
    return next((t for t in (f"{done} / {total}", f"{done}/{total}") if len(t) <= _SAMPLES), plain)


class RecentPanel(Panel):
    """The newest runs, for screens with room beside the events."""

    DEFAULT_CSS = """
    RecentPanel { height: 1fr; }
    """

    def lines(self, state: State, width: int) -> list[Content]:
        if not state.runs:
            return []
        shown = state.runs[: max(0, self.content_size.height - 1)]
        return [head_row(width), *(run_row(run, width, state.host_now) for run in shown)]

    def get_content_height(self, *_: object) -> int:
        return max(1, self.content_size.height)


def totals(runs: Sequence[RunSummary]) -> str:
    """``12 runs · 8 completed · 3 failed · 1 running``"""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    order = ("running", "queued", "completed", "incomplete", "failed", "aborted", "lost")
    words = [f"{formats.count(counts[s])} {s}" for s in order if s in counts]
    number = f"{formats.count(len(runs))} run" + ("" if len(runs) == 1 else "s")
    return " · ".join([number, *words])
