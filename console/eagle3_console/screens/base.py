"""What every screen has: the header with the link's state, a body, the row of keys.

A screen takes the state and draws it; it changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.worker import WorkType

from eagle3_agent.protocol.values import Problem
from eagle3_console.hosttext import clean
from eagle3_console.store import ENDED, State
from eagle3_console.widgets.header import Header
from eagle3_console.widgets.keybar import KeyBar
from eagle3_console.widgets.panel import Panel


class ConsoleScreen(Screen[None]):
    """Subclasses give ``body`` and may name the actions in the row of keys."""

    KEYS: ClassVar[tuple[str, ...]] = ("back", "help")
    DEFAULT_CSS = """
    ConsoleScreen { background: $background; }
    ConsoleScreen #body { padding: 1 0 0 0; height: 1fr; }
    ConsoleScreen #body.-stale Panel { text-opacity: 80%; }
    ConsoleScreen #body.-stale LinkBanner { text-opacity: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def compose(self) -> ComposeResult:
        yield Header()
        with Vertical(id="body"):
            yield from self.body()
        yield KeyBar(self.KEYS)

    def body(self) -> ComposeResult:
        """The widgets between header and keys."""
        yield from ()

    def on_mount(self) -> None:
        self.take(self.state)

    def on_screen_resume(self) -> None:
        self.take(self.state)

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.take(self.state)

    def take(self, state: State) -> None:
        """The new state; a screen that is out of sight only keeps it."""
        self.state = state
        if not self.is_mounted or not self.is_active:
            return
        self.query_one("#body").set_class(not state.live and state.shown_at is not None, "-stale")
        self.query_one(KeyBar).set_off(switched_off(state))
        self.show(state)

    def show(self, state: State) -> None:
        """Draw; the panels do it by themselves."""
        for panel in self.query(Panel):
            panel.show(state)

    def complain(self, problem: Problem) -> None:
        """A toast for what went wrong while this screen was filled."""
        words, title = clean(problem.happened), clean(problem.title)
        self.notify(words, title=title, severity="error", markup=False)

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]], group: str) -> None:
        """Run beside the screen; nothing is made when the screen is left before it starts."""
        self.run_worker(cast("WorkType[None]", work), group=group, exclusive=True)

    def target_run(self) -> str:
        """The run that keys such as log and abort mean here."""
        return self.state.current

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()


def switched_off(state: State) -> frozenset[str]:
    """Actions that would only say why they cannot be done now."""
    off = set()
    if state.read_only:
        off |= {"start", "abort", "start_over", "act"}
    if state.kept_at is not None:
        off |= {"start", "abort", "preflight", "start_over", "act"}
    if state.profile is None:
        off |= {"start", "preflight", "start_over"}
    if not any(r.state not in ENDED for r in state.runs):
        off.add("abort")
    if not state.current:
        off.add("log")
    if state.last_failed is None:
        off.add("errors")
    return frozenset(off)


class Scroll(VerticalScroll):
    """A scrolled page with arrow and vim keys."""

    DEFAULT_CSS = """
    Scroll { scrollbar-size-vertical: 1; }
    Scroll:focus { background-tint: $foreground 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
        Binding("g", "scroll_home", "top", show=False),
        Binding("G", "scroll_end", "bottom", show=False),
        Binding("ctrl+f", "page_down", "page down", show=False),
        Binding("ctrl+b", "page_up", "page up", show=False),
    ]
