"""What did I try, and how did it end?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.content import Content

from eagle3_agent.protocol.values import RunSummary
from eagle3_console import formats
from eagle3_console.hosttext import clean, crop_left
from eagle3_console.messages import RunOpened
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import error_headline, where
from eagle3_console.widgets.runlist import RunList, head_row, totals

from .base import ConsoleScreen


class HistoryHead(Panel):
    DEFAULT_CSS = "HistoryHead { padding: 0; }"

    def lines(self, state: State, width: int) -> list[Content]:
        if not state.runs:
            words = "No run on this host yet" if state.runs_known else "reading the history"
            return [Content.styled(" " + words, ink.DIM)]
        return [ink.row((" HISTORY  ", ink.STRONG), (totals(state.runs), ink.DIM)), head_row(width)]


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
            headline = error_headline(run.error, width)
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
    KEYS: ClassVar[tuple[str, ...]] = ("open", "log", "abort", "start", "back", "help")

    def body(self) -> ComposeResult:
        yield HistoryHead()
        yield RunList()
        yield PointedRun()

    def on_resize(self) -> None:
        self.query_one(PointedRun).set_class(self.size.height >= 30, "-tall")
        super().on_resize()

    def show(self, state: State) -> None:
        super().show(state)
        runs = self.query_one(RunList)
        if runs.runs is not state.runs or state.running:
            runs.show(state.runs, state.host_now)
        self.on_run_list_pointed()

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
