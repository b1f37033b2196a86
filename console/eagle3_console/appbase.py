"""What the TUI's owner is made of: the link, the state, and the screens in front.

Every change on screen comes from news that the host sent: a key sends a
message, the answer is applied to the state, the screens draw the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.reactive import reactive
from textual.screen import ModalScreen, Screen

from eagle3_agent.protocol.values import Problem, Profile

from . import store
from .linkstate import LinkPort
from .screens.base import ConsoleScreen
from .screens.confirm import ProblemScreen
from .screens.dashboard import DashboardScreen
from .store import State
from .themes import THEMES


class BaseApp(App[int]):
    """``link`` may be connected already; else it is connected here, and an error is shown."""

    state: reactive[State] = reactive(State, init=False)

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
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
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

    def watch_state(self, state: State) -> None:
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
