"""May I start, and if not, what do I do?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from eagle3_console import formats
from eagle3_console.hosttext import clean, first_line
from eagle3_console.messages import PreflightAsked, StartOver
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import NO_PROFILE, will_run
from eagle3_console.widgets.verdicts import VerdictsPanel, headline, summary

from .base import ConsoleScreen, Scroll
from .confirm import ConfirmScreen


class CheckHeadline(Panel):
    """The answer in one row, and what the start would run."""

    DEFAULT_CSS = "CheckHeadline { margin-bottom: 1; }"

    def lines(self, state: State, width: int) -> list[Content]:
        rows = []
        if state.checking is not None:
            took = formats.duration(state.now - state.checking)
            what = "checking the host before the start" if state.starting else "checking the host"
            rows.append(ink.row(("▶ ", f"bold {ink.NOW}"), f"{what}  ", (took, ink.DIM)))
        elif state.report is not None:
            right = summary(state.report, state.host_now)
            rows.append(ink.ends(headline(state.report), right, width))
        elif state.profile is not None:
            rows.append(ink.row("No check yet  ", ("r", ink.NOW), " runs them"))
        if state.profile is not None:
            return rows + will_run(state.profile, width)
        return rows + [Content.styled(line, ink.DIM) for line in NO_PROFILE]


class PreflightScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = ("again", "start", "start_over", "fold", "back", "help")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again", "check again"),
        Binding("o", "start_over", "start over blocks"),
        Binding("space", "fold", "show all"),
    ]

    def body(self) -> ComposeResult:
        yield CheckHeadline()
        with Scroll():
            yield VerdictsPanel()

    def action_again(self) -> None:
        self.post_message(PreflightAsked())

    def action_fold(self) -> None:
        self.query_one(VerdictsPanel).toggle()

    def action_start_over(self) -> None:
        """Say which checks block and ask; No is the default."""
        report = self.state.report
        if self.state.read_only or self.state.profile is None:
            self.post_message(StartOver(()))  # the app says why it cannot
            return
        if report is None or not report.blocking:
            self.notify("Nothing blocks: s starts the run.")
            return
        force = tuple(v.check for v in report.blocking)
        names = [f"✗ {clean(v.title)}: {first_line(v.saw)}" for v in report.blocking]
        many = f"these {len(force)} blocks" if len(force) > 1 else "this block"
        question = ConfirmScreen(
            f"Start over {many}?",
            [*names, "", "The run keeps a note that it was started over them."],
            "Start anyway",
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self.post_message(StartOver(force))

        self.app.push_screen(question, answered)
