"""What a screen asks of the app: small messages upward, nothing comes back but the new state."""

from __future__ import annotations

from textual.message import Message


class StartOver(Message):
    """Start although these checks block; the person has said yes."""

    def __init__(self, force: tuple[str, ...]) -> None:
        super().__init__()
        self.force = force


class PreflightAsked(Message):
    """Run the checks again."""


class RunOpened(Message):
    """Show everything about a run."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
