"""What did I try, and how did it end?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.content import Content

from eagle3_console.messages import RunOpened
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.runlist import RunList, head_row, totals

from .base import ConsoleScreen


class HistoryHead(Panel):
    DEFAULT_CSS = "HistoryHead { padding: 0; }"

    def lines(self, state: State, width: int) -> list[Content]:
        if not state.runs:
            words = "No run on this host yet" if state.runs_known else "reading the history"
            return [Content.styled(" " + words, ink.DIM)]
        return [ink.row((" HISTORY  ", ink.STRONG), (totals(state.runs), ink.DIM)), head_row(width)]


class HistoryScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = ("open", "log", "abort", "start", "back", "help")

    def body(self) -> ComposeResult:
        yield HistoryHead()
        yield RunList()

    def show(self, state: State) -> None:
        super().show(state)
        runs = self.query_one(RunList)
        if runs.runs is not state.runs or state.running:
            runs.show(state.runs, state.host_now)

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.query_one(RunList).focus()

    def target_run(self) -> str:
        run = self.query_one(RunList).selected
        return run.run if run is not None else ""

    def on_run_list_opened(self, message: RunList.Opened) -> None:
        self.post_message(RunOpened(message.run))
