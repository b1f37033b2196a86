"""What the TUI's owner is made of: the link, the state, and the screens in front.

Every change on screen comes from news that the host sent: a key sends a
message, the answer is applied to the state, the screens draw the state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.app import App
from textual.filter import LineFilter, Monochrome
from textual.notifications import Notify
from textual.reactive import reactive
from textual.screen import ModalScreen, Screen

from eagle3_agent.protocol.values import Problem, Profile

from . import plain, settings, store, themes, toasts
from .linkstate import LinkPort
from .outward import Outward, title_words
from .screens.base import ConsoleScreen
from .screens.confirm import ProblemScreen
from .screens.dashboard import DashboardScreen
from .store import State
from .words import Severity


class BaseApp(App[int]):
    """``link`` may be connected already; else it is connected here, and an error is shown."""

    #: The panels draw what changed of it; a repaint of all would cost more than they do.
    state: reactive[State] = reactive(State, init=False, repaint=False)

    def __init__(
        self,
        link: LinkPort,
        target: str,
        profile: Profile | None = None,
        profile_path: Path | None = None,
        read_only: bool = False,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.theme = themes.named(settings.theme()).name
        self._plain = plain.Plain(lambda: themes.named(self.theme))
        self._colourless = plain.wanted(os.environ)
        self.outward = Outward(self._to_terminal, lambda: self.bell(), os.environ)
        self._told: set[str] = set()
        self._link = link
        self._now = now
        self.set_reactive(
            BaseApp.state,
            State(
                target=target,
                now=now(),
                read_only=read_only,
                profile=profile,
                profile_path=str(profile_path or ""),
            ),
        )

    def get_default_screen(self) -> Screen[Any]:
        return DashboardScreen(self.state)

    def apply(self, news: store.Input) -> None:
        self.state = store.apply(self.state, news)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Without colour where that is asked for; Textual's own answer to it keeps greys."""
        if not self._colourless:
            return super().get_line_filters()
        kept = [f for f in super().get_line_filters() if not isinstance(f, Monochrome)]
        return [*kept, self._plain]

    def on_notify(self, event: Notify) -> None:
        """Older toasts make room for one that comes."""
        for old in toasts.crowded_out([*self._notifications, event.notification], *self.size):
            self._unnotify(old)

    def _to_terminal(self, text: str) -> None:
        if self._driver is not None and not self.is_headless:
            self._driver.write(text)

    def choose_theme(self, name: str) -> None:
        """From now on, and the next time."""
        self.theme = name
        problem = settings.remember_theme(name)
        title = f"The {themes.words(name)} theme"
        severity: Severity = "warning" if problem else "information"
        said = problem or "It is kept for the next time."
        self.notify(said, title=title, severity=severity, timeout=3, markup=False)

    def action_next_theme(self) -> None:
        self.choose_theme(themes.following(self.theme).name)

    def watch_state(self, state: State) -> None:
        self.outward.title(title_words(state))
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.take(state)

    def _may(self, what: str) -> bool:
        """Whether this console may change the host now; says why not."""
        if self.state.read_only:
            words = f"This console was opened with --read-only, so it cannot {what}."
            self.notify(words, title="Not done", severity="warning", markup=False)
        elif not self.state.live:
            self._not_now(what)
        return self.state.live and not self.state.read_only

    def _not_now(self, what: str) -> None:
        words = f"There is no link to the host, so it cannot {what} now."
        self.notify(words, title="Not done", severity="warning", markup=False)

    def _open(self, screen: ConsoleScreen) -> None:
        """Put a screen in front; one of its kind that is open already gives way to it."""
        kinds = [type(s) for s in self.screen_stack]
        if type(screen) in kinds:
            while len(self.screen_stack) > max(1, kinds.index(type(screen))):
                self.pop_screen()
        self.push_screen(screen)

    def _to_dashboard(self) -> None:
        while len(self.screen_stack) > 1 and not isinstance(self.screen, ModalScreen):
            self.pop_screen()

    def _tell(self, problem: Problem) -> None:
        self.push_screen(ProblemScreen(problem))
