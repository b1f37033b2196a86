"""What changed from one run to another?"""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from eagle3_agent.protocol.values import RunDetail
from eagle3_console import render_diff
from eagle3_console.analysis.diff import Diff, diff
from eagle3_console.hosttext import clean
from eagle3_console.store import State
from eagle3_console.widgets import ink

from .pages import PageScreen

_INK = {
    "": "",
    "strong": ink.STRONG,
    "dim": ink.DIM,
    "now": ink.NOW,
    "good": ink.GOOD,
    "look": ink.LOOK,
    "bad": ink.BAD,
}


class DiffScreen(PageScreen):
    """The app asks the host for both runs; what came is kept as long as the screen is open."""

    KEYS: ClassVar[tuple[str, ...]] = ("fold", "swap", "log", "history", "back", "help")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "fold", "all", tooltip="show what did not change, too"),
        Binding("x", "swap", "swap", tooltip="compare the other way round"),
    ]

    def __init__(self, state: State, before: str, after: str) -> None:
        super().__init__(state)
        self.before, self.after = before, after
        self.unfolded = False
        self._made: tuple[RunDetail, RunDetail, Diff] | None = None
        self._kept: dict[str, RunDetail] = {}

    def action_fold(self) -> None:
        self.unfolded = not self.unfolded
        self.take(self.state)

    def action_swap(self) -> None:
        self.before, self.after = self.after, self.before
        self.take(self.state)

    def target_run(self) -> str:
        return self.after

    def show(self, state: State) -> None:
        for run in (self.before, self.after):
            if run in state.details:
                self._kept[run] = state.details[run]
        super().show(state)

    def page(self, state: State, width: int) -> list[Content]:
        missing = [run for run in (self.before, self.after) if run not in self._kept]
        if missing:
            words = "reading" if state.live else "not kept here, and there is no link:"
            names = " and ".join(f"run {clean(run)}" for run in missing)
            return [Content.styled(f"{words} {names}", ink.DIM)]
        made = render_diff.rows(self._diff(), width, unfolded=self.unfolded)
        told = [ink.cut(ink.row(*((t, _INK[i]) for t, i in line)), width) for line in made]
        folded = "hides" if self.unfolded else "shows"
        hint = ink.row(("space", ink.NOW), (f" {folded} what is the same", ink.DIM))
        page = [told[0], Content(""), *_spaced(told[1:]), hint]
        fits = len(page) <= self.size.height - 4  # header, keys, and the page's own margins
        return page if fits else [told[0], Content(""), *told[1:], hint]

    def _diff(self) -> Diff:
        before, after = self._kept[self.before], self._kept[self.after]
        if self._made is None or self._made[0] is not before or self._made[1] is not after:
            self._made = (before, after, diff(before, after))
        return self._made[2]


def _spaced(rows: list[Content]) -> list[Content]:
    """A blank row between two sections."""
    told: list[Content] = []
    for row in rows:
        if told and row.plain[2:3].strip():
            told.append(Content(""))
        told.append(row)
    return told
