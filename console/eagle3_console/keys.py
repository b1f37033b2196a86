"""The keys that work now, read from the real bindings: for the help and the palette of commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.app import App
from textual.binding import ActiveBinding
from textual.dom import DOMNode

from .widgets.keybar import key_name

#: Textual's own actions in the console's words.
_WORDS = {
    "command_palette": ("commands", "every action by its name, and the themes"),
    "focus_next": ("next", "the next part of the screen"),
    "focus_previous": ("previous", "the part of the screen before"),
    "copy_text": ("copy", "what the mouse has marked"),
}
#: Textual's, of no use here: it says how to quit.
_LEFT_OUT = frozenset({"help_quit"})


@dataclass(frozen=True)
class Key:
    """One action with all of its keys."""

    keys: tuple[str, ...]
    """As they stand on a keyboard."""
    does: str
    """In a word or two."""
    says: str
    """A sentence; empty where the word says all."""
    action: str
    node: DOMNode
    """What the action belongs to."""
    shown: bool
    """Whether the row of keys may show it."""

    @property
    def general(self) -> bool:
        """Whether it is Textual's own, to get about on a screen."""
        return self.name in _WORDS

    @property
    def name(self) -> str:
        """The action without its place and arguments."""
        return _bare(self.action)

    def matches(self, asked: str) -> bool:
        """Whether every word of ``asked`` stands in a key's name or in what it does."""
        text = " ".join((*self.keys, self.does, self.says)).lower()
        return all(word in text for word in asked.lower().split())


@dataclass(frozen=True)
class Keys:
    here: tuple[Key, ...]
    everywhere: tuple[Key, ...]


def of(bindings: Iterable[ActiveBinding]) -> Keys:
    """Of a screen's ``active_bindings``; what the row of keys shows comes first."""
    here: dict[str, list[ActiveBinding]] = {}
    everywhere: dict[str, list[ActiveBinding]] = {}
    for active in bindings:
        name = _bare(active.binding.action)
        general = isinstance(active.node, App) or name in _WORDS
        if name not in _LEFT_OUT and (active.binding.description or name in _WORDS):
            group = everywhere if general else here
            group.setdefault(active.binding.action, []).append(active)
    return Keys(_rows(here), _rows(everywhere))


def _rows(group: dict[str, list[ActiveBinding]]) -> tuple[Key, ...]:
    made = [_key(found) for found in group.values()]
    return tuple(sorted(made, key=lambda key: (not key.shown, key.name == "quit")))


def _key(found: list[ActiveBinding]) -> Key:
    found = sorted(found, key=lambda active: not active.binding.show)
    binding = found[0].binding
    does, says = _WORDS.get(_bare(binding.action), (binding.description, binding.tooltip))
    names = tuple(dict.fromkeys(key_name(active.binding) for active in found))
    return Key(names, does, says, binding.action, found[0].node, binding.show)


def _bare(action: str) -> str:
    return action.split("(")[0].rsplit(".", 1)[-1]
