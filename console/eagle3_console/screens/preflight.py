"""May I start, and if not, what do I do?"""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from eagle3_console import formats
from eagle3_console.checks import Checks
from eagle3_console.hosttext import clean, crop, first_line
from eagle3_console.messages import ActAsked, PreflightAsked, StartOver, StopAsked
from eagle3_console.store import State
from eagle3_console.verdicts import Offer, offers
from eagle3_console.widgets import ink
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import NO_PROFILE, will_run
from eagle3_console.widgets.verdicts import VerdictsPanel, headline, summary, tally

from .base import ConsoleScreen, Scroll
from .confirm import ConfirmScreen

#: Rows for the names of probes that are waited for.
_NAMES = 2

#: Rows of a screen from which the answer stands in a band of three.
_TALL = 30


class Answer(Panel):
    """Ready or not, in a band across the screen; while a check goes on, what it waits for."""

    DEFAULT_CSS = """
    Answer { padding: 0 1; background: $surface; }
    Answer.-tall { padding: 1 1; margin-bottom: 1; }
    Answer.-bad { background: $error 18%; }
    Answer.-good { background: $success 18%; }
    Answer.-busy { background: $accent 12%; }
    """

    def show(self, state: State) -> None:
        checks = state.checks
        busy = checks.since is not None
        blocked = checks.report is not None and bool(checks.report.blocking)
        self.set_class(busy, "-busy")
        self.set_class(not busy and blocked, "-bad")
        self.set_class(not busy and checks.report is not None and not blocked, "-good")
        self.set_class(self.screen.size.height >= _TALL, "-tall")
        super().show(state)

    def lines(self, state: State, width: int) -> list[Content]:
        checks = state.checks
        if checks.since is not None:
            took = Content.styled(formats.duration(state.now - checks.since), ink.DIM)
            words = ink.row(("▶ ", f"bold {ink.NOW}"), (_doing(checks), "bold"))
            return [ink.ends(words, took, width)]
        if checks.report is not None:
            right = summary(checks.report, state.host_now)
            if checks.deep:
                right = ink.row(("deep · ", ink.DIM), right)
            return [ink.ends(headline(checks.report), right, width)]
        if state.profile is not None:
            return [ink.row("No check yet  ", ("r", ink.NOW), " runs them")]
        return [Content.styled(line, ink.DIM) for line in NO_PROFILE]


def _doing(checks: Checks) -> str:
    if checks.acting:
        return clean(checks.acting)
    what = "checking the host deeply" if checks.going_deep else "checking the host"
    return f"{what} before the start" if checks.starting else what


class CheckHeadline(Panel):
    """How many checks say what, or how far they are, and what the start would run."""

    DEFAULT_CSS = "CheckHeadline { margin-bottom: 1; }"

    def lines(self, state: State, width: int) -> list[Content]:
        rows = _standing(state, width)
        if state.profile is not None:
            rows += will_run(state.profile, width)
        return rows


def _standing(state: State, width: int) -> list[Content]:
    checks = state.checks
    if checks.since is not None and not checks.acting:
        return _progress(checks, width)
    if checks.since is None and checks.report is not None:
        items = tally(checks.report)
        if not checks.report.blocking and not state.read_only:
            items.append(ink.row(("s", f"bold {ink.NOW}"), " starts it"))
        return ink.spread(items, width)
    return []


def _progress(checks: Checks, width: int) -> list[Content]:
    """A bar of the probes that have answered, and the names of those that have not."""
    probing = checks.probing
    if probing is None:
        return [ink.row(*ink.bar(None, min(40, width // 2)), ("  asking the host", ink.DIM))]
    bar = ink.bar(probing.done / max(1, probing.total), min(40, width // 2))
    rows = [ink.row(*bar, f"  {probing.done} of {probing.total} probes answered")]
    if probing.waiting:
        names = textwrap.wrap(", ".join(map(clean, probing.waiting)), max(16, width - 12))
        if len(names) > _NAMES:
            names[_NAMES - 1 :] = [crop(f"{names[_NAMES - 1]} and others", width - 12)]
        rows.append(ink.row(("waiting for ", ink.DIM), names[0]))
        rows += [ink.row(" " * 12, line) for line in names[1:]]
    return rows


class PreflightScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = (
        "act", "again", "deep", "stop", "start", "start_over", "fold", "back", "help",
    )  # fmt: skip
    DEFAULT_CSS = "PreflightScreen VerdictsPanel.-old { text-opacity: 60%; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "act", "do", tooltip="show what the chosen action would do, and ask"),
        Binding("r", "again", "again", tooltip="check again"),
        Binding("D", "deep", "deep", tooltip="exercise GPUs, links, disk and engine: minutes"),
        Binding("x", "stop", "stop", tooltip="give up the check that is going on"),
        Binding("o", "start_over", "start over", tooltip="start although checks block"),
        Binding("space", "fold", "all", tooltip="show the checks that pass, and fold them"),
        Binding("down,j", "move(1)", "next action", show=False, priority=True),
        Binding("up,k", "move(-1)", "previous action", show=False, priority=True),
        *(Binding(str(n), f"open({n})", f"action {n}", show=False) for n in range(1, 10)),
    ]

    def body(self) -> ComposeResult:
        yield Answer()
        yield CheckHeadline()
        with Scroll():
            yield VerdictsPanel()

    def show(self, state: State) -> None:
        panel = self.query_one(VerdictsPanel)
        panel.set_class(state.checks.since is not None, "-old")
        keys = [offer.key for offer in self._offers()]
        if panel.chosen not in keys:
            panel.choose(keys[0] if keys else None)
        super().show(state)
        self.refresh_bindings()

    def _offers(self) -> tuple[Offer, ...]:
        report = self.state.checks.report
        return offers(report) if report is not None else ()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        checks = self.state.checks
        if action == "stop":
            return checks.since is not None and not checks.starting and not checks.acting
        if action in ("again", "deep"):
            return checks.since is None
        if action == "act":
            return checks.since is None and bool(self._offers())
        if action == "start_over":
            return checks.since is None and checks.report is not None
        return True

    # ------------------------------------------------------------------ the host

    def action_again(self) -> None:
        self.post_message(PreflightAsked())

    def action_deep(self) -> None:
        self.post_message(PreflightAsked(deep=True))

    def action_stop(self) -> None:
        self.post_message(StopAsked())

    def action_fold(self) -> None:
        self.query_one(VerdictsPanel).toggle()

    # ------------------------------------------------------------------ actions

    def action_move(self, step: int) -> None:
        """To the next action that can be seen from here, or on by a row."""
        panel, scroll = self.query_one(VerdictsPanel), self.query_one(Scroll)
        keys = [offer.key for offer in self._offers()]
        at = keys.index(panel.chosen) + step if panel.chosen in keys else -1
        if 0 <= at < len(keys) and keys[at] in panel.places:
            row, rows = panel.places[keys[at]]
            top, height = scroll.scroll_offset.y, scroll.size.height
            if top - height < row < top + 2 * height:
                panel.choose(keys[at])
                if row < top or row + rows > top + height:
                    scroll.scroll_to(y=max(0, row - height // 2), animate=False)
                return
        scroll.scroll_relative(y=step, animate=False)

    def action_open(self, number: int) -> None:
        found = self._offers()
        if number <= len(found):
            self.query_one(VerdictsPanel).choose(found[number - 1].key)
            self.post_message(ActAsked(found[number - 1]))

    def action_act(self) -> None:
        chosen = self.query_one(VerdictsPanel).chosen
        for offer in self._offers():
            if offer.key == chosen:
                self.post_message(ActAsked(offer))

    # ------------------------------------------------------------------ start over

    def action_start_over(self) -> None:
        """Say which checks block and ask; No is the default."""
        report = self.state.checks.report
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
