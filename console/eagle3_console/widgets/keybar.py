"""The last row: the keys that matter on this screen, taken from its real bindings."""

from __future__ import annotations

from textual import events
from textual.app import App
from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from . import ink

_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "enter": "⏎",
    "escape": "esc",
    "space": "space",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
}


class KeyBar(Widget):
    """``actions`` names what is shown, in order; ``off`` what would only say why it cannot."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; padding: 0 1; background: $surface;
             text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, actions: tuple[str, ...]) -> None:
        super().__init__()
        self.actions = actions
        self.off: frozenset[str] = frozenset()
        self._places: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.refresh())

    def set_off(self, off: frozenset[str]) -> None:
        if off != self.off:
            self.off = off
            self.refresh()

    def render(self) -> Content:
        found = by_action(self.screen.active_bindings)
        actions = [action for action in self.actions if action in found]
        parts = [self._part(found[action].binding, action in self.off) for action in actions]
        room = self.content_size.width - sum(p.cell_length for p in parts)
        gap = " " * min(3, max(1, room // max(1, len(parts) - 1)))
        self._places, at = [], 0
        for action, part in zip(actions, parts):
            self._places.append((at, at + part.cell_length, _qualified(found[action])))
            at += part.cell_length + len(gap)
        return Content(gap).join(parts)

    def _part(self, binding: Binding, off: bool) -> Content:
        key = (key_name(binding), ink.DIM if off else f"bold {ink.NOW}")
        return ink.row(key, " ", (binding.description, ink.DIM if off else ""))

    async def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, action in self._places:
            if at is not None and start <= at.x < end:
                await self.screen.run_action(action)
                return


def _qualified(active: ActiveBinding) -> str:
    """The action with the place where it lives, so that it can be run from here."""
    action = active.binding.action
    if isinstance(active.node, App):
        return f"app.{action}"
    return f"screen.{action}" if isinstance(active.node, Screen) else f"focused.{action}"


def by_action(bindings: dict[str, ActiveBinding]) -> dict[str, ActiveBinding]:
    """The first shown binding of each action, without arguments in its name."""
    found: dict[str, ActiveBinding] = {}
    for active in bindings.values():
        if active.binding.show:
            found.setdefault(active.binding.action.split("(")[0].rsplit(".", 1)[-1], active)
    return found


def key_name(binding: Binding) -> str:
    """A key as it stands on a keyboard."""
    key = binding.key_display or binding.key
    return _NAMES.get(key, key.replace("ctrl+", "^"))
