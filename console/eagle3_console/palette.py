"""The palette's commands (ctrl+p): what the keys of the screen below do, and the themes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from . import keys, themes


class Chooses(Protocol):
    """The app, as far as a theme is concerned."""

    def choose_theme(self, name: str) -> None: ...


@dataclass(frozen=True)
class Offered:
    words: str
    says: str
    run: Callable[[], Awaitable[object] | object]


class Commands(Provider):
    """Every action of the screen in front by its name, with its keys."""

    async def discover(self) -> Hits:
        for offered in self._offered():
            yield DiscoveryHit(offered.words, offered.run, help=offered.says)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for offered in self._offered():
            score = max(matcher.match(offered.words), 0.6 * matcher.match(offered.says))
            if score > 0:
                shown = matcher.highlight(offered.words)
                yield Hit(score, shown, offered.run, text=offered.words, help=offered.says)

    def _offered(self) -> Iterator[Offered]:
        found = keys.of(self.screen.active_bindings.values())
        for key in (*found.here, *found.everywhere):
            if (key.shown or key.says) and not key.general and key.name != "back":
                words = f"{key.does.capitalize()}  ({' '.join(key.keys)})"
                run = partial(self.app.run_action, key.action, key.node)
                yield Offered(words, key.says, run)
        app = cast("Chooses", self.app)
        for theme in themes.THEMES:
            words = f"Theme: {themes.words(theme.name)}"
            says = "kept for the next time" + (
                "; chosen now" if theme.name == self.app.theme else ""
            )
            yield Offered(words, says, partial(app.choose_theme, theme.name))
