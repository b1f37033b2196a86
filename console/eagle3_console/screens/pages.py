"""Pages to read: one run, the errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_console.errors import ConsoleError
from eagle3_console.hosttext import clean
from eagle3_console.linkstate import Piece
from eagle3_console.store import State, kept_tail
from eagle3_console.widgets import cause, ink
from eagle3_console.widgets.pages import Known, errors_page, run_page
from eagle3_console.widgets.panel import Panel

from .base import ConsoleScreen, Scroll

Feed = Callable[[], AsyncIterator[Piece]]


class Page(Panel):
    """Rows that the screen works out from the state."""

    DEFAULT_CSS = "Page { padding: 0 2 1 1; }"

    def __init__(self, make: Callable[[State, int], list[Content]]) -> None:
        super().__init__()
        self._make = make

    def lines(self, state: State, width: int) -> list[Content]:
        return self._make(state, width)


class PageScreen(ConsoleScreen):
    def body(self) -> ComposeResult:
        with Scroll():
            yield Page(self.page)

    def page(self, state: State, width: int) -> list[Content]:
        """The rows at ``width`` cells."""
        return []


class RunReading(PageScreen):
    """A page about one run; its events are read from the host unless the dashboard has them."""

    def __init__(self, state: State, run: str, feed: Feed) -> None:
        super().__init__(state)
        self.run = run
        self._feed = feed
        self._standing: Standing | None = None
        self._tail: tuple[Event, ...] = ()

    def on_mount(self) -> None:
        super().on_mount()
        if self.run and self.run != self.state.current:
            self.begin(self._read, "read")

    def standing(self, state: State) -> Standing | None:
        return state.standing if self.run == state.current else self._standing

    def tail(self, state: State) -> tuple[Event, ...]:
        """The run's newest events."""
        return state.tail if self.run == state.current else self._tail

    def target_run(self) -> str:
        return self.run

    async def _read(self) -> None:
        rest, standing = b"", Standing()
        try:
            async for piece in self._feed():
                *lines, rest = (rest + piece.data).split(b"\n")
                events = [e for e in map(decode_event, lines) if e is not None]
                for event in events:
                    standing = fold(standing, event)
                self._tail = kept_tail(self._tail, events)
                self._standing = standing
                self.take(self.state)
        except ConsoleError as error:
            self.complain(error.problem)


class RunScreen(RunReading):
    """Everything about one run."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "log", "errors", "diff", "rerun", "resume", "abort", "fold", "back", "help",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "fold", "all checks", tooltip="show the checks that passed, too"),
    ]
    unfolded = False

    def action_fold(self) -> None:
        self.unfolded = not self.unfolded
        self.take(self.state)

    def page(self, state: State, width: int) -> list[Content]:
        run = state.find(self.run)
        if run is None:
            return [Content.styled(f"run {clean(self.run)} is no longer in the history", ink.DIM)]
        title = ink.row((f"RUN {run.number}  {clean(run.profile)}", ink.STRONG))
        standing = self.standing(state) or Standing()
        detail = state.details.get(run.run)
        known = Known(run, standing, self.tail(state), detail, self.unfolded)
        rows = run_page(known, state, width)
        return [title, Content(""), *rows]


class ErrorsScreen(RunReading):
    """What happened first?"""

    KEYS: ClassVar[tuple[str, ...]] = ("log", "diff", "history", "start", "back", "help")

    def cause_line(self) -> int | None:
        """The line of the run's log where the cause begins; None where that is not known."""
        first = cause.known(self.standing(self.state), self.state.details.get(self.run))
        return first.line if first is not None else None

    def page(self, state: State, width: int) -> list[Content]:
        run = state.find(self.run)
        if run is None:
            return [ink.row(("✓ ", ink.GOOD), "No run on this host has failed")]
        standing = self.standing(state) or Standing()
        known = Known(run, standing, self.tail(state), state.details.get(run.run))
        return errors_page(known, state, width)
