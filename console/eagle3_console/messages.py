"""What a screen asks of the app: small messages upward, nothing comes back but the new state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.message import Message

from eagle3_agent.protocol.values import Profile

from .profile_edit import Draft
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


class EditAsked(Message):
    """Open this profile's file, or without one the loaded profile, to be changed."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = path


class DraftChanged(Message):
    """What a person has typed so far: kept, however the screen is left."""

    def __init__(self, draft: Draft, *, unsaved: bool) -> None:
        super().__init__()
        self.draft = draft
        self.unsaved = unsaved


class ProfileTaken(Message):
    """Make this the session's profile; ``start`` then asks whether to start it."""

    def __init__(
        self,
        profile: Profile,
        path: str = "",
        run: str = "",
        overrides: Mapping[str, Any] | None = None,
        *,
        start: bool = False,
    ) -> None:
        super().__init__()
        self.profile = profile
        self.path = path
        self.run = run
        self.overrides = overrides or {}
        self.start = start
