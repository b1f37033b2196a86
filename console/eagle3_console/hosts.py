"""What a host is to the rest of the console: somewhere a program can be run over byte pipes.

The two kinds live in ``local`` and ``ssh``; nothing here knows how bytes travel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from eagle3_agent.protocol.values import Problem

from .errors import ConsoleError

#: Bytes of a program's standard error that are kept for a message.
STDERR_KEPT = 16 * 1024


class Refused(ConsoleError):
    """The host said no, and will say it again: trying once more without a change is useless."""


class NoAgent(Refused):
    """No agent runs on the host, and none was to be started."""


@dataclass(frozen=True)
class HostKeyQuestion:
    """A host whose key is in no known_hosts file; only a person can vouch for it."""

    host: str
    """As known_hosts spells it: ``name``, or ``[name]:port`` off port 22."""
    key_type: str
    """Such as ``ssh-ed25519``."""
    fingerprint: str
    """``SHA256:`` and base64, as ``ssh-keygen -l`` prints it."""
    file: str
    """The known_hosts file that will remember a yes."""
    via: str = ""
    """The jump host that is asked about, seen from the target; empty for the target itself."""


@dataclass(frozen=True)
class SecretQuestion:
    """A passphrase or a password is needed; the answer is never logged or stored."""

    prompt: str
    retry: bool = False
    """The answer before this one was wrong."""


AskHostKey = Callable[[HostKeyQuestion], Awaitable[bool]]
AskSecret = Callable[[SecretQuestion], Awaitable[str | None]]


class Channel(Protocol):
    """One running program: its three pipes, and how it ended."""

    async def read(self, limit: int = 65536) -> bytes:
        """Up to ``limit`` bytes of standard output; empty at its end.  Raises ConsoleError."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input, waiting while the other side is slow.

        Raises ConsoleError when the pipe is gone.
        """
        ...

    def stderr_tail(self) -> bytes:
        """The last bytes of standard error, at most ``STDERR_KEPT``."""
        ...

    async def exit_status(self) -> int | None:
        """Wait for the end; None when it is not known, negative for a signal."""
        ...

    async def close(self) -> None:
        """End the program's pipes and forget it; safe to call twice."""
        ...


class Host(Protocol):
    """Somewhere a program can be started."""

    name: str
    """A label for the screen."""
    python: str | None
    """An interpreter on the host to try before those that are usually there."""

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know and that stopped nothing."""
        ...

    async def open(self, argv0: str = "/bin/sh") -> Channel:
        """Start ``argv0`` (a plain path: no arguments, nothing to quote).

        Raises ConsoleError (code ``connect``); :class:`Refused` where a retry cannot help.
        """
        ...

    async def close(self) -> None:
        """Drop the connection and every channel."""
        ...


def connect_error(title: str, happened: str, todo: str, *, final: bool = False) -> ConsoleError:
    """An error of code ``connect``; ``final`` where trying again without a change is useless."""
    problem = Problem(title, happened, todo, "connect")
    return Refused(problem) if final else ConsoleError(problem)


def printable(data: bytes | str, limit: int = 400) -> str:
    """Text from a host made fit for a message: one paragraph, no control characters, cut."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    words = "".join(c if c.isprintable() else " " for c in text[: limit * 20]).split()
    joined = " ".join(words)
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"
