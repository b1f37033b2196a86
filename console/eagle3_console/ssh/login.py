"""One authenticated connection: try, ask a person for what is missing, try again.

Everything a person must be asked (an unknown host key, a passphrase, a
password) is asked between two attempts, never inside one: an attempt's time
limit is for the network, not for someone looking for a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import asyncssh

from eagle3_console.address import Address
from eagle3_console.hosts import (
    AskHostKey,
    AskSecret,
    HostKeyQuestion,
    SecretQuestion,
    connect_error,
)

from . import errors, known_hosts
from .config import SshFiles
from .host_keys import Client, Known
from .keys import Keys, agent_keys

KEEPALIVE_INTERVAL = 2
KEEPALIVE_COUNT = 3
"""Unanswered keepalives until a link is dead: 8 s in all, measured."""
_MAX_QUESTIONS = 12


class _Truthy(list[Any]):
    """A list that counts as given when empty: asyncssh takes [] for "the default files"."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Way:
    """Where one connection goes, and how."""

    address: Address
    configs: Sequence[Path]
    tunnel: asyncssh.SSHClientConnection | None
    """The jump host's connection."""
    via: str
    """The address again when this is a jump host, else empty."""
    target: str
    """Where all of it leads."""


class Login:
    """How one user logs in; remembers what was answered, for as long as the host is used."""

    def __init__(
        self, files: SshFiles, ask_host_key: AskHostKey | None, ask_secret: AskSecret | None
    ) -> None:
        self.notices: list[str] = []
        self._files = files
        self._ask_host_key = ask_host_key
        self._ask_secret = ask_secret
        self._unlocked: dict[Path, asyncssh.SSHKey] = {}
        self._passwords: dict[str, str] = {}
        self._vouched: set[tuple[str, str]] = set()

    async def connect(
        self, way: Way, options: asyncssh.SSHClientConnectionOptions
    ) -> asyncssh.SSHClientConnection:
        """Try, ask what is missing, try again.  Raises ConsoleError."""
        get = options.config.get
        known = Known(self._files.users_known_hosts(get), self._files.systems_known_hosts(get))
        who = f"{options.username}@{way.address.host}"
        asked: set[Path] = set()
        for _ in range(_MAX_QUESTIONS):
            keys = await asyncio.to_thread(
                Keys.load, self._files.identities(get), dict(self._unlocked), options
            )
            client = Client(known, self._vouched, options.host_key_alias is not None)
            try:
                return await self._attempt(way, options, client, keys, who)
            except asyncssh.HostKeyNotVerifiable as error:
                await self._judge_host_key(client, known, way, error)
            except asyncssh.PermissionDenied as error:
                if not await self._ask_for_login(client, keys, who, asked):
                    tried = await self._tried(options, keys)
                    raise errors.denied(who, way.via, tried, keys.locked, error) from None
            except (asyncssh.Error, OSError, asyncio.TimeoutError, ValueError) as error:
                if isinstance(error, asyncssh.Error) and "authentication failures" in error.reason:
                    tried = await self._tried(options, keys)
                    raise errors.too_many_keys(who, tried, error) from None
                raise errors.translate(error, str(way.address), way.via, way.target) from None
        raise connect_error(
            f"{way.address}: too many questions",
            "The host asked again and again.",
            "Try `ssh` by hand to see what it wants.",
            final=True,
        )

    async def _attempt(
        self,
        way: Way,
        options: asyncssh.SSHClientConnectionOptions,
        client: Client,
        keys: Keys,
        who: str,
    ) -> asyncssh.SSHClientConnection:
        configured = cast("int | None", options.config.get("ConnectTimeout"))
        return await asyncssh.connect(
            way.address.host,
            way.address.port or (),
            username=way.address.user or (),
            config=[str(path) for path in way.configs] or None,
            tunnel=way.tunnel,
            client_factory=lambda: client,
            known_hosts=client.trusted,
            server_host_key_algs=client.algorithms(options),
            client_keys=_Truthy(keys.usable),
            client_certs=[str(path) for path in self._files.certificates(options.config.get)],
            agent_path=self._agent(options),
            agent_identities=_Truthy(keys.identities) if keys.only else None,
            password=self._passwords.get(who),
            connect_timeout=configured or errors.CONNECT_TIMEOUT,
            login_timeout=errors.CONNECT_TIMEOUT,
            keepalive_interval=KEEPALIVE_INTERVAL,
            keepalive_count_max=KEEPALIVE_COUNT,
            agent_forwarding=False,
            x11_forwarding=False,
        )

    def _agent(self, options: asyncssh.SSHClientConnectionOptions) -> str:
        return self._files.agent_socket(options.config.get("IdentityAgent", ""))

    async def _tried(self, options: asyncssh.SSHClientConnectionOptions, keys: Keys) -> list[str]:
        return [*await agent_keys(self._agent(options)), *keys.said]

    # ------------------------------------------------------------------ questions

    async def _judge_host_key(
        self, client: Client, known: Known, way: Way, error: asyncssh.HostKeyNotVerifiable
    ) -> None:
        """Return to try again; raise to refuse."""
        shown = client.shown
        if shown is None:
            raise errors.untrusted(str(way.address), error) from None
        finding = known.look_up(shown)
        name = known_hosts.spelled(shown.host, shown.port)
        mark = known_hosts.fingerprint(shown.key)
        if finding.verdict in ("changed", "revoked"):
            raise errors.refused_key(name, shown.key_type, mark, finding) from None
        question = HostKeyQuestion(name, shown.key_type, mark, str(known.user[0]), way.via)
        if self._ask_host_key is None or not await self._ask_host_key(question):
            raise errors.not_vouched(name, shown.key_type, mark, known.user[0]) from None
        self._vouched.add((name, shown.key))
        try:
            known_hosts.remember(known.user[0], shown.host, shown.port, shown.key_type, shown.key)
        except OSError as problem:
            self.notices.append(
                f"{known.user[0]} cannot be written ({problem.strerror}): "
                f"the key of {name} will be asked for again"
            )

    async def _ask_for_login(self, client: Client, keys: Keys, who: str, asked: set[Path]) -> bool:
        """Unlock one more key, else take a password; False when there is nothing to ask."""
        if self._ask_secret is None:
            return False
        for path in keys.locked:
            if path in asked:
                continue
            asked.add(path)
            if await self._unlock(path):
                return True
        if client.password_wanted:
            retry = self._passwords.pop(who, None) is not None
            answer = await self._ask_secret(SecretQuestion(f"Password of {who}", retry))
            if answer is not None:
                self._passwords[who] = answer
                return True
        return False

    async def _unlock(self, path: Path) -> bool:
        assert self._ask_secret is not None
        for attempt in range(3):
            answer = await self._ask_secret(SecretQuestion(f"Passphrase of {path}", attempt > 0))
            if answer is None:
                return False
            try:
                key = await asyncio.to_thread(asyncssh.read_private_key, path, answer)
            except (ValueError, OSError):
                continue
            self._unlocked[path] = key
            return True
        return False
