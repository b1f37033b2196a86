"""What a link to a host can be, as values, and what the screens' owner asks of one; pure.

``link.py`` holds the connection itself; the store and the widgets only know
these names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol, Union

from eagle3_agent.protocol.messages import (
    Message,
    Probing,
    RunChanged,
    StreamName,
    Telemetry,
    Welcome,
)
from eagle3_agent.protocol.values import Problem, RunSummary


@dataclass(frozen=True)
class Connecting:
    """The first connect goes on; ``step`` says with what."""

    step: str


@dataclass(frozen=True)
class Live:
    latency: float | None
    """Seconds for a round trip; None before the first one."""
    welcome: Welcome


@dataclass(frozen=True)
class Reconnecting:
    attempt: int
    next_at: float
    """Epoch seconds by the workstation's clock, as ``since``."""
    since: float
    why: Problem


@dataclass(frozen=True)
class Offline:
    """Nothing is tried any more."""

    since: float
    why: Problem


LinkState = Union[Connecting, Live, Reconnecting, Offline]


@dataclass(frozen=True)
class Piece:
    """Bytes of one of a run's files, in order: the next offset is offset + len(data)."""

    offset: int
    data: bytes
    caught_up: bool
    """The file ended here when this was read."""
    ended: bool
    """The run has ended and no byte will follow."""


@dataclass(frozen=True)
class Kept:
    """A host's history as this workstation last saw it."""

    at: float
    """Epoch seconds, the workstation's clock."""
    runs: tuple[RunSummary, ...]
    """Oldest first."""


class LinkPort(Protocol):
    """The part of a link that the TUI uses."""

    @property
    def state(self) -> LinkState: ...

    @property
    def agent_outdated(self) -> bool:
        """The agent that serves is not the one that this console ships."""

    warnings: tuple[str, ...]
    """What did not stop the connection and that a person should know."""
    kept: Kept | None
    """What can be read of a host that could not be reached; None while it can, or was never."""
    on_state: Callable[[LinkState], None] | None
    on_push: Callable[[RunChanged | Telemetry], None] | None

    async def connect(self) -> Welcome:
        """Raises ConsoleError."""

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: Callable[[Probing], None] | None = None,
    ) -> Message:
        """The reply; a refusal or a lost link raises ConsoleError.

        ``on_progress`` hears of a preflight's progress before its reply.
        """

    def stream(self, run: str, stream: StreamName, offset: int = 0) -> AsyncIterator[Piece]:
        """A run's file from ``offset`` to its end, over reconnects, without gap or repeat."""

    async def watch(
        self, *, runs: bool = True, host_interval: float = 1.0
    ) -> tuple[RunSummary, ...]:
        """Every run, and from then on ``on_push`` for what changes."""

    async def close(self) -> None: ...
