"""What did I try, and how did it end?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from eagle3_agent.protocol.values import RunSummary
from eagle3_console import formats, runsearch
from eagle3_console.hosttext import clean, crop, crop_left
from eagle3_console.messages import RunOpened
from eagle3_console.runsearch import Column
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import where
from eagle3_console.widgets.runlist import RunList, first_cause, head_row, totals

from .base import ConsoleScreen

#: What the list can be ordered by, and whether the largest stands first; the column's own name.
ORDERS: tuple[tuple[Column, bool, str], ...] = (
    ("run", True, "run"),
    ("took", True, "took"),
    ("tok/s", True, "tok/s"),
    ("samples", True, "samples"),
    ("state", False, "outcome"),
    ("profile", False, "profile"),
    ("run", False, "run"),
)


class HistoryHead(Panel):
    """How many runs of each outcome, what the filter leaves, and the columns' names."""

    DEFAULT_CSS = "HistoryHead { padding: 0; }"

    def __init__(self) -> None:
        super().__init__()
        self.shown = 0
        self.wanted = runsearch.parse("")
        self.order = ORDERS[0]
        self.marked = ""

    def lines(self, state: State, width: int) -> list[Content]:
        if not state.runs:
            words = "No run on this host yet" if state.runs_known else "reading the history"
            return [Content.styled(" " + words, ink.DIM)]
        left = ink.row((" HISTORY  ", ink.STRONG), (totals(state.runs), ink.DIM))
        _, reverse, name = self.order
        return [ink.ends(left, self._said(state), width), head_row(width, name, reverse)]

    def _said(self, state: State) -> Content:
        marked = state.find(self.marked) if self.marked else None
        if marked is not None:
            words = (f"run {marked.number} · d on another ", ink.NOW)
            return ink.row(self._filtered(), ("◆ ", ink.NOW), words)
        return self._filtered()

    def _filtered(self) -> Content:
        if not self.wanted.terms:
            return Content("")
        said = crop(clean(self.wanted.said), 40)
        if self.wanted.unclear:
            unclear = crop(clean(self.wanted.unclear[0]), 20)
            return Content.styled(f"! {unclear} compares nothing ", ink.LOOK)
        return Content.styled(f"{formats.count(self.shown)} match {said} ", ink.NOW)


class PointedRun(Panel):
    """What the list has no room for, of the run under the cursor."""

    DEFAULT_CSS = """
    PointedRun { height: 2; }
    PointedRun.-tall { height: 6; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.run: RunSummary | None = None

    def lines(self, state: State, width: int) -> list[Content]:
        run = self.run
        if run is None:
            return []
        head = ink.row(
            (f"run {run.number}  ", ink.STRONG),
            crop_left(clean(run.model), 50),
            (" into ", ink.DIM),
        )
        facts = ink.row(head, crop_left(clean(run.output_dir), width - head.cell_length))
        rows = [facts]
        if self.has_class("-tall"):
            rows = [Content(""), facts, *_figures(run, state, width)]
        if run.error is not None:
            spot = where(run.error)
            rest = f"   {spot}" if spot else ""
            headline = crop(first_cause(run), width)
            rows.append(ink.row(("✗ ", ink.BAD), headline, (rest, ink.DIM)))
            if self.has_class("-tall") and run.error.where is not None:
                rows.append(ink.row(("  ▶ ", ink.NOW), clean(run.error.where.source.strip())))
        return [ink.cut(row, width) for row in rows]


def _figures(run: RunSummary, state: State, width: int) -> list[Content]:
    """What a narrow list leaves out."""
    items = [
        ink.row(("attempt ", ink.DIM), f"{run.attempt} of {state.attempts(run)}"),
        ink.row(("engine ", ink.DIM), clean(run.engine)),
        ink.row(("started ", ink.DIM), formats.moment(run.started, state.host_now)),
        ink.row(("stage ", ink.DIM), clean(run.stage) or formats.UNKNOWN),
        ink.row(formats.count(run.tokens), (" tokens", ink.DIM)),
        ink.row(formats.size(run.bytes), (" written", ink.DIM)),
    ]
    return ink.spread(items, width)[:1]


class HistoryScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = (
        "open", "filter", "order", "mark", "diff", "log", "abort", "start", "back", "help",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", tooltip="words, state:failed, tok/s>9k, took<1h"),
        Binding("o", "order(1)", "order", tooltip="order by the next column"),
        Binding("O", "order(-1)", "order back", show=False),
        Binding("space", "mark", "mark", tooltip="mark this run; d on another compares the two"),
    ]
    DEFAULT_CSS = """
    HistoryScreen Input { display: none; height: 1; padding: 0 1; background: $panel; }
    HistoryScreen Input.-textual-compact { padding: 0 1 !important; }
    HistoryScreen Input.-open { display: block; }
    """

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.wanted = runsearch.parse("")
        self.order = 0
        self._drawn: tuple[object, ...] = ()

    def body(self) -> ComposeResult:
        yield HistoryHead()
        yield RunList()
        yield PointedRun()
        yield Input(
            placeholder="words · state:failed · model:kimi · tok/s>9k · took<1h · age<2d · -not",
            select_on_focus=False,
            compact=True,
        )

    def on_resize(self) -> None:
        self.query_one(PointedRun).set_class(self.size.height >= 30, "-tall")
        super().on_resize()

    def show(self, state: State) -> None:
        head, runs = self.query_one(HistoryHead), self.query_one(RunList)
        drawn = (state.runs, self.wanted, self.order)
        if any(a is not b for a, b in zip(drawn, self._drawn)) or not self._drawn:
            self._drawn = drawn
            runs.show(self._chosen(state), state.host_now)
        elif state.running:  # only the clock moved: thousands need not be looked through for that
            runs.show(runs.runs, state.host_now)
        head.shown, head.wanted, head.order = len(runs.runs), self.wanted, ORDERS[self.order]
        head.marked = self.marked
        super().show(state)
        self.on_run_list_pointed()

    def _chosen(self, state: State) -> tuple[RunSummary, ...]:
        found = state.runs
        if self.wanted.terms:
            found = tuple(runsearch.select(found, self.wanted, state.host_now))
        if self.order:
            column, reverse, _ = ORDERS[self.order]
            found = tuple(runsearch.ordered(found, column, state.host_now, reverse=reverse))
        return found

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.add_class("-open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = runsearch.parse(event.value)
        self.show(self.state)

    def on_input_submitted(self) -> None:
        """Keep the filter and go to the list."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        box = self.query_one(Input)
        if not box.value.strip():
            box.remove_class("-open")
        self.query_one(RunList).focus()

    def action_mark(self) -> None:
        runs = self.query_one(RunList)
        runs.marked = "" if runs.marked == self.target_run() else self.target_run()
        runs.refresh()
        self._show_head()

    @property
    def marked(self) -> str:
        """The run that was marked; empty when none is, or the host has it no more."""
        run = self.state.find(self.query_one(RunList).marked)
        return run.run if run is not None else ""

    def _show_head(self) -> None:
        head = self.query_one(HistoryHead)
        head.marked = self.marked
        head.show(self.state)

    def action_back(self) -> None:
        box = self.query_one(Input)
        if box.has_focus or self.wanted.terms:
            box.value = ""
            self._leave_filter()
        else:
            super().action_back()

    def action_order(self, step: int) -> None:
        self.order = (self.order + step) % len(ORDERS)
        self.show(self.state)

    def on_run_list_pointed(self, _: RunList.Pointed | None = None) -> None:
        foot = self.query_one(PointedRun)
        foot.run = self.query_one(RunList).selected
        foot.show(self.state)

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.query_one(RunList).focus()

    def target_run(self) -> str:
        run = self.query_one(RunList).selected
        return run.run if run is not None else ""

    def on_run_list_opened(self, message: RunList.Opened) -> None:
        self.post_message(RunOpened(message.run))
