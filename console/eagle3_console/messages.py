"""What a screen asks of the app: small messages upward, nothing comes back but the new state."""

from __future__ import annotations

from textual.message import Message

from .verdicts import Offer


class StartOver(Message):
    """Start although these checks block; the person has said yes."""

    def __init__(self, force: tuple[str, ...]) -> None:
        super().__init__()
        self.force = force


class PreflightAsked(Message):
    """Run the checks again, or the deep ones."""

    def __init__(self, deep: bool = False) -> None:
        super().__init__()
        self.deep = deep


class StopAsked(Message):
    """End the preflight that is under way."""


class ActAsked(Message):
    """Show what this action would do, and ask."""

    def __init__(self, offer: Offer) -> None:
        super().__init__()
        self.offer = offer


class RunOpened(Message):
    """Show everything about a run."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
