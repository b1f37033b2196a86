"""A host over ssh: its configuration, its jump hosts, one connection, many channels."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import asyncssh

from eagle3_console.address import Address, parse_address
from eagle3_console.hosts import AskHostKey, AskSecret, Channel, connect_error, printable

from . import config
from .channel import SshChannel
from .config import SshFiles
from .errors import no_session, translate
from .login import Login, Way

_OPEN_TIMEOUT = 15.0
_SESSION_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts at a session that sshd refuses."""
_MAX_HOPS = 8
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")


class SshHost:
    """One host, one connection, as many channels as its sshd allows."""

    def __init__(
        self,
        address: Address,
        *,
        ask_host_key: AskHostKey | None = None,
        ask_secret: AskSecret | None = None,
        files: SshFiles | None = None,
        python: str | None = None,
    ) -> None:
        self.name = str(address)
        self.python = python
        self._address = address
        self._files = files or SshFiles()
        self._login = Login(self._files, ask_host_key, ask_secret)
        self._lock = asyncio.Lock()
        self._connections: list[asyncssh.SSHClientConnection] = []
        self._configs: tuple[Path, ...] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def notices(self) -> list[str]:
        """What the user should know and that did not stop us, such as a passed-over line."""
        return self._login.notices

    async def open(self, argv0: str = "/bin/sh") -> Channel:
        if not _PLAIN_PATH.fullmatch(argv0):
            raise ValueError(f"not a plain path: {argv0!r}")
        connection = await self._connected()
        for wait in (*_SESSION_WAITS, None):
            try:
                process = await asyncio.wait_for(
                    connection.create_process(
                        argv0, encoding=None, request_pty=False, stderr=asyncssh.PIPE
                    ),
                    _OPEN_TIMEOUT,
                )
            except asyncssh.ChannelOpenError as error:
                # with MaxSessions 1, sshd frees the session before this one a moment after it
                # has told us of its end
                if wait is None:
                    raise no_session(error, self.name) from None
                await asyncio.sleep(wait)
            except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
                raise translate(error, self.name) from None
            else:
                break
        return SshChannel(cast("asyncssh.SSHClientProcess[bytes]", process), self.name)

    async def close(self) -> None:
        await self._drop()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = self._configs = None

    async def _drop(self) -> None:
        connections, self._connections = self._connections, []
        for connection in reversed(connections):
            connection.abort()
            await connection.wait_closed()

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._lock:
            if self._connections and not any(c.is_closed() for c in self._connections):
                return self._connections[-1]
            await self._drop()
            try:
                await self._connect_chain(self._address, depth=0)
            except BaseException:
                await self._drop()
                raise
            return self._connections[-1]

    async def _connect_chain(self, address: Address, depth: int) -> None:
        """Connect to an address, through its jump hosts, appending every connection made."""
        if depth > _MAX_HOPS:
            raise connect_error(
                f"{self.name}: the jump hosts lead in a circle",
                f"More than {_MAX_HOPS} hops were asked for; the last was {address}.",
                "Give the jump host a Host block of its own with `ProxyJump none`.",
                final=True,
            )
        options = await self._options(address)
        jumps = [] if self._connections else _jumps(options.tunnel)
        for jump in jumps:
            await self._connect_chain(jump, depth + 1)
        tunnel = self._connections[-1] if self._connections else None
        label = str(address) if depth else ""
        way = Way(address, self._configs or (), tunnel, label, self.name)
        self._connections.append(await self._login.connect(way, options))

    async def _options(self, address: Address) -> asyncssh.SSHClientConnectionOptions:
        """What the configuration files say for an address; ``Match exec`` may run a command."""
        if self._configs is None:
            await asyncio.to_thread(self._read_configs)
        try:
            return await asyncio.to_thread(_resolve, address, self._configs or ())
        except (asyncssh.Error, ValueError, OSError) as error:
            raise connect_error(
                f"The ssh configuration for {address} cannot be used",
                printable(str(error)),
                f"Correct {' or '.join(map(str, self._files.configs()))}.",
                final=True,
            ) from None

    def _read_configs(self) -> None:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="eagle3-ssh-")

        def parse(paths: Sequence[Path]) -> None:
            _resolve(self._address, paths)

        try:
            found = config.readable(
                self._files.configs(), Path(self._scratch.name), self._files.folder, parse
            )
        except (ValueError, OSError) as error:
            raise connect_error(
                "The ssh configuration cannot be read",
                printable(str(error)),
                f"Correct {' or '.join(map(str, self._files.configs()))}.",
                final=True,
            ) from None
        self._configs = found.paths
        self.notices.extend(found.notices)


def _resolve(address: Address, configs: Sequence[Path]) -> asyncssh.SSHClientConnectionOptions:
    """The options of one address.  Raises ValueError, asyncssh's own errors and OSError."""
    options = asyncssh.SSHClientConnectionOptions(
        host=address.host,
        port=address.port or (),
        username=address.user or (),
        config=[str(path) for path in configs] or None,
        # keys are ours to load; a file with a passphrase must not stop the reading of options
        client_keys=None,
        agent_identities=None,
    )
    if options.config.has_match_final():
        options.update(host=options.host, reload=True, canonical=False, final=True)
    return options


def _jumps(spec: object) -> list[Address]:
    """``ProxyJump``'s value: [user@]host[:port] or ssh:// addresses, by commas."""
    if not isinstance(spec, str) or spec.lower() == "none":
        return []
    return [parse_address(part.strip().removeprefix("ssh://")) for part in spec.split(",")]
