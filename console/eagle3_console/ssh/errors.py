"""What asyncssh and the network say, in words: the only place that translates."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import asyncssh

from eagle3_console.errors import ConsoleError
from eagle3_console.hosts import connect_error, printable

from . import known_hosts

CONNECT_TIMEOUT = 15.0
"""Seconds for one attempt, from name resolution to a finished login."""


def refused_key(name: str, key_type: str, mark: str, finding: known_hosts.Finding) -> ConsoleError:
    assert finding.entry is not None
    place = finding.entry.place
    if finding.verdict == "revoked":
        return connect_error(
            f"The host key of {name} is revoked",
            f"It showed {key_type} {mark}, and {place} says that nobody may trust it.",
            "Ask whoever runs the host; do not connect.",
            final=True,
        )
    known = known_hosts.fingerprint(finding.entry.key)
    return connect_error(
        f"The host key of {name} has changed",
        f"It showed {key_type} {mark}; {place} knows {finding.entry.key_type} {known}. "
        "Either the host was set up anew, or somebody is between you and it.",
        f"Ask whoever runs the host for its fingerprint. If it is the new one, delete line "
        f"{finding.entry.line} of {finding.entry.file} and connect again.",
        final=True,
    )


def denied(
    who: str,
    via: str,
    tried: Sequence[str],
    locked: Sequence[Path],
    error: asyncssh.Error,
) -> ConsoleError:
    """A login that was refused; ``tried`` names every key that was offered or could not be."""
    where = f" (jump host {via})" if via else ""
    todo = "Add your public key to ~/.ssh/authorized_keys on the host"
    if locked:
        todo = f"Unlock the key with `ssh-add {locked[0]}`, or add another key on the host"
    return connect_error(
        f"Login refused: {who}{where}",
        f"{printable(error.reason)}. Tried: {'; '.join(tried) or 'no key was found'}.",
        f"{todo}, or name the right user and key (User, IdentityFile in your ssh configuration).",
        final=True,
    )


def too_many_keys(who: str, tried: Sequence[str], error: asyncssh.Error) -> ConsoleError:
    return connect_error(
        f"{who}: the host cut the login off",
        f"{printable(error.reason)}. Offered: {'; '.join(tried)}.",
        "Name the one key for this host: IdentityFile and `IdentitiesOnly yes` in your ssh "
        "configuration.",
        final=True,
    )


def untrusted(address: str, error: asyncssh.Error) -> ConsoleError:
    """A host certificate that no known authority signed, or that is not for this name."""
    return connect_error(
        f"{address}: the host certificate was refused",
        printable(error.reason),
        "Check the @cert-authority and @revoked lines of your known_hosts files.",
        final=True,
    )


def not_vouched(name: str, key_type: str, mark: str, file: Path) -> ConsoleError:
    return connect_error(
        f"The host key of {name} is not known",
        f"It showed {key_type} {mark}; nobody vouched for it.",
        f"Compare it with `ssh-keygen -lf` on the host, then accept it or add it to {file}.",
        final=True,
    )


def translate(error: BaseException, target: str, via: str = "", last: str = "") -> ConsoleError:
    """Turn what asyncssh or the network said into words; the only place that does so."""
    name = f"the jump host {via} (towards {last})" if via else target
    if isinstance(error, socket.gaierror):
        return connect_error(
            f"There is no host named {target}",
            f"Name resolution says: {error.strerror or error}.",
            "Check the spelling, the Host aliases of your ssh configuration, and your VPN.",
        )
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return connect_error(
            f"No answer from {name}",
            f"It did not finish within {CONNECT_TIMEOUT:.0f} s.",
            "Check that the host is up and that a firewall lets you through.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return connect_error(
            f"{target} cannot be reached through its jump host",
            printable(error.reason) or "The jump host could not connect to it.",
            "Check ProxyJump and the address as the jump host sees it, and that the jump host's "
            "sshd allows TCP forwarding.",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return connect_error(
            f"{name} and this console share no ssh algorithm",
            printable(error.reason),
            "Look at Ciphers, MACs, KexAlgorithms and HostKeyAlgorithms on both sides.",
            final=True,
        )
    if isinstance(error, asyncssh.Error):
        return connect_error(
            f"The ssh connection to {name} was lost",
            printable(error.reason) or type(error).__name__,
            "Check the network and the host's sshd log.",
        )
    if isinstance(error, ConnectionRefusedError):
        return connect_error(
            f"{name} refuses connections",
            "Nothing listens at that address and port.",
            "Check the port (HOST:PORT, or Port in your ssh configuration) and that sshd runs.",
        )
    if isinstance(error, (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)):
        return connect_error(
            f"The ssh connection to {name} was lost",
            printable(error.strerror or str(error)) or "The other side closed it.",
            "Check the network and the host's sshd log.",
        )
    if isinstance(error, OSError):
        return connect_error(
            f"{name} cannot be reached",
            printable(error.strerror or str(error)) or type(error).__name__,
            "Check the network, your VPN and the address.",
        )
    return connect_error(
        f"The connection to {name} cannot be set up",
        printable(str(error)) or type(error).__name__,
        "Check the options for this host in your ssh configuration.",
        final=True,
    )


def no_session(error: asyncssh.ChannelOpenError, name: str) -> ConsoleError:
    return connect_error(
        f"{name} opens no further session",
        printable(error.reason) or "Its sshd refused the channel.",
        "Its sshd has reached MaxSessions or allows no sessions at all: close another console, or "
        "raise MaxSessions there.",
    )
