"""A host over ssh: the one file that knows asyncssh, and the one place its errors are translated.

Everything a person must be asked (an unknown host key, a passphrase, a
password) is asked between two attempts, never inside one: an attempt's time
limit is for the network, not for someone looking for a note.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncssh

from . import known_hosts, ssh_config
from .address import Address, parse_address
from .errors import ConsoleError
from .hosts import (
    STDERR_KEPT,
    AskHostKey,
    AskSecret,
    Channel,
    HostKeyQuestion,
    SecretQuestion,
    connect_error,
    printable,
)
from .ssh_config import SshFiles

CONNECT_TIMEOUT = 15.0
"""Seconds for one attempt, from name resolution to a finished login."""
KEEPALIVE_INTERVAL = 2
KEEPALIVE_COUNT = 3
"""Unanswered keepalives until a link is dead: 8 s in all, measured."""
_OPEN_TIMEOUT = 15.0
_SESSION_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts at a session that sshd refuses."""
_MAX_HOPS = 8
_MAX_QUESTIONS = 12
#: Key type -> signature algorithms, in the order of preference; SHA-1 is not among them.
_HOST_KEYS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")


class _Truthy(list[Any]):
    """A list that counts as given when empty: asyncssh takes [] for "the default files"."""

    def __bool__(self) -> bool:
        return True


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
        self.notices: list[str] = []
        """What the user should know and that did not stop us, such as a passed-over line."""
        self._address = address
        self._ask_host_key = ask_host_key
        self._ask_secret = ask_secret
        self._files = files or SshFiles()
        self._lock = asyncio.Lock()
        self._connections: list[asyncssh.SSHClientConnection] = []
        self._configs: tuple[Path, ...] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._unlocked: dict[Path, asyncssh.SSHKey] = {}
        self._passwords: dict[str, str] = {}
        self._vouched: set[tuple[str, str]] = set()

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
                    raise _no_session(error, self.name) from None
                await asyncio.sleep(wait)
            except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
                raise translate(error, self.name) from None
            else:
                break
        return _SshChannel(cast("asyncssh.SSHClientProcess[bytes]", process), self.name)

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
        label = str(address) if depth else ""
        self._connections.append(await self._login(address, label))

    # ------------------------------------------------------------------ one login

    async def _login(self, address: Address, via: str) -> asyncssh.SSHClientConnection:
        """Try, ask what is missing, try again."""
        wanted: set[Path] = set()
        for _ in range(_MAX_QUESTIONS):
            options = await self._options(address)
            get = options.config.get
            known = _Known(self._files.users_known_hosts(get), self._files.systems_known_hosts(get))
            keys = await asyncio.to_thread(
                _Keys.load, self._files.identities(get), dict(self._unlocked), options
            )
            client = _Client(known, self._vouched)
            who = f"{options.username}@{address.host}"
            try:
                return await self._attempt(address, options, client, keys, who)
            except asyncssh.HostKeyNotVerifiable as error:
                await self._judge_host_key(client, known, address, via, error)
            except asyncssh.PermissionDenied as error:
                if not await self._ask_for_login(client, keys, who, wanted):
                    raise _denied(who, via, keys, error) from None
            except (asyncssh.Error, OSError, asyncio.TimeoutError, ValueError) as error:
                raise translate(error, str(address), via, self.name) from None
        raise connect_error(
            f"{address}: too many questions",
            "The host asked again and again.",
            "Try `ssh` by hand to see what it wants.",
            final=True,
        )

    async def _attempt(
        self,
        address: Address,
        options: asyncssh.SSHClientConnectionOptions,
        client: _Client,
        keys: _Keys,
        who: str,
    ) -> asyncssh.SSHClientConnection:
        configured = cast("int | None", options.config.get("ConnectTimeout"))
        return await asyncssh.connect(
            address.host,
            address.port or (),
            username=address.user or (),
            config=list(self._configs or ()) or None,
            tunnel=self._connections[-1] if self._connections else None,
            client_factory=lambda: client,
            known_hosts=client.trusted,
            server_host_key_algs=client.algorithms(options),
            client_keys=_Truthy(keys.usable),
            agent_path=self._files.agent_socket(options.config.get("IdentityAgent", "")),
            agent_identities=_Truthy(keys.identities) if keys.only else None,
            password=self._passwords.get(who),
            connect_timeout=configured or CONNECT_TIMEOUT,
            login_timeout=CONNECT_TIMEOUT,
            keepalive_interval=KEEPALIVE_INTERVAL,
            keepalive_count_max=KEEPALIVE_COUNT,
            agent_forwarding=False,
            x11_forwarding=False,
        )

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
            found = ssh_config.readable(
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

    # ------------------------------------------------------------------ questions

    async def _judge_host_key(
        self,
        client: _Client,
        known: _Known,
        address: Address,
        via: str,
        error: asyncssh.HostKeyNotVerifiable,
    ) -> None:
        """Return to try again; raise to refuse."""
        shown = client.shown
        if shown is None:
            raise connect_error(
                f"{address}: the host key was refused",
                printable(str(error)),
                "Check the @cert-authority and @revoked lines of your known_hosts files.",
                final=True,
            ) from None
        finding = known.look_up(shown)
        name = known_hosts.spelled(shown.host, shown.port)
        mark = known_hosts.fingerprint(shown.key)
        if finding.verdict in ("changed", "revoked"):
            raise _refused_key(name, shown.key_type, mark, finding) from None
        question = HostKeyQuestion(name, shown.key_type, mark, str(known.user[0]), via)
        if self._ask_host_key is None or not await self._ask_host_key(question):
            raise connect_error(
                f"The host key of {name} is not known",
                f"It showed {shown.key_type} {mark}; nobody vouched for it.",
                f"Compare it with `ssh-keygen -lf` on the host, then accept it or add it to "
                f"{known.user[0]}.",
                final=True,
            ) from None
        self._vouched.add((name, shown.key))
        try:
            known_hosts.remember(known.user[0], shown.host, shown.port, shown.key_type, shown.key)
        except OSError as problem:
            self.notices.append(
                f"{known.user[0]} cannot be written ({problem.strerror}): "
                f"the key of {name} will be asked for again"
            )

    async def _ask_for_login(
        self, client: _Client, keys: _Keys, who: str, wanted: set[Path]
    ) -> bool:
        """Unlock one more key, else take a password; False when there is nothing to ask."""
        if self._ask_secret is None:
            return False
        for path in keys.locked:
            if path in wanted:
                continue
            wanted.add(path)
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


def _resolve(address: Address, configs: Sequence[Path]) -> asyncssh.SSHClientConnectionOptions:
    def make(**more: Any) -> asyncssh.SSHClientConnectionOptions:
        # keys are ours to load; a file with a passphrase must not stop the reading of options
        return asyncssh.SSHClientConnectionOptions(
            host=address.host,
            port=address.port or (),
            username=address.user or (),
            config=[str(path) for path in configs] or None,
            client_keys=None,
            agent_identities=None,
            **more,
        )

    options = make()
    if options.config.has_match_final():
        host = options.host
        options.update(host=host, reload=True, canonical=False, final=True)
    return options


def _jumps(spec: object) -> list[Address]:
    """``ProxyJump``'s value: [user@]host[:port] or ssh:// addresses, by commas."""
    if not isinstance(spec, str) or spec.lower() == "none":
        return []
    return [parse_address(part.strip().removeprefix("ssh://")) for part in spec.split(",")]


@dataclass(frozen=True)
class _Shown:
    """The host key that an attempt met and that known_hosts does not vouch for."""

    host: str
    port: int
    key_type: str
    key: str


class _Known:
    """The known_hosts files that count for one host."""

    def __init__(self, user: Sequence[Path], system: Sequence[Path]) -> None:
        self.user = tuple(user) or (Path(os.devnull),)
        self._files = (*self.user, *system)

    def look_up(self, shown: _Shown) -> known_hosts.Finding:
        return known_hosts.look_up(self._files, shown.host, shown.port, shown.key_type, shown.key)

    def types(self, host: str, port: int) -> set[str]:
        """The types of the keys known of a host; ``authority`` where one signs for it."""
        exact = known_hosts.matching(self._files, host, port)
        found = exact or known_hosts.matching(self._files, host, None)
        return {"authority" if entry.marker else entry.key_type for entry in found}

    def trusted(self, host: str, port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """(host keys, certificate authorities, revoked keys), as asyncssh wants them."""
        found: dict[str, list[asyncssh.SSHKey]] = {"": [], "cert-authority": [], "revoked": []}
        exact = known_hosts.matching(self._files, host, port)
        for entry in exact or known_hosts.matching(self._files, host, None):
            try:
                found[entry.marker].append(asyncssh.import_public_key(entry.public))
            except asyncssh.KeyImportError:
                continue
        return found[""], found["cert-authority"], found["revoked"]


def _key_algorithms(known: _Known, options: asyncssh.SSHClientConnectionOptions) -> tuple[str, ...]:
    """Host key types to ask for: those known of this host first, so that it shows a known key.

    The others follow, so that a host without its known key shows another and is told apart from
    one that shares no algorithm.  Empty where the configuration says HostKeyAlgorithms.
    """
    if options.config.get("HostKeyAlgorithms") is not None:
        return ()
    names = known.types(options.host_key_alias or options.host, options.port)
    order = [
        algorithm
        for kind, algorithms in _HOST_KEYS.items()
        for algorithm in algorithms
        if kind in names
    ]
    order += [algorithm for algorithms in _HOST_KEYS.values() for algorithm in algorithms]
    certificates = (f"{algorithm}-cert-v01@openssh.com" for algorithm in dict.fromkeys(order))
    return (*(certificates if "authority" in names else ()), *dict.fromkeys(order))


class _Client(asyncssh.SSHClient):
    """Watches one attempt: which host key was shown, whether a password would help."""

    def __init__(self, known: _Known, vouched: set[tuple[str, str]]) -> None:
        self.shown: _Shown | None = None
        self.password_wanted = False
        self._known = known
        self._vouched = vouched

    def trusted(self, host: str, addr: str, port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        # by the name alone: what is known of an address says nothing about a name that moved
        return self._known.trusted(host, port)

    def algorithms(self, options: asyncssh.SSHClientConnectionOptions) -> tuple[str, ...]:
        return _key_algorithms(self._known, options)

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        # asked for unknown and for changed keys alike; the files are read again, with line numbers
        key_type, text = key.export_public_key("openssh").decode("ascii").split()[:2]
        self.shown = _Shown(host, port, key_type, text)
        finding = self._known.look_up(self.shown)
        if finding.verdict == "known":
            return True
        name = known_hosts.spelled(host, port)
        return finding.verdict == "unknown" and (name, text) in self._vouched

    def password_auth_requested(self) -> str | None:
        self.password_wanted = True
        return None

    def kbdint_auth_requested(self) -> str | None:
        self.password_wanted = True
        return None


@dataclass
class _Keys:
    """The user's keys for one login."""

    usable: list[Any] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)
    """Files that need a passphrase, and whose key no agent is known to hold."""
    identities: list[bytes] = field(default_factory=list)
    """What an agent may offer when ``only``."""
    only: bool = False
    said: list[str] = field(default_factory=list)
    """One phrase a file, for a message."""

    @staticmethod
    def load(
        files: Sequence[Path],
        unlocked: dict[Path, asyncssh.SSHKey],
        options: asyncssh.SSHClientConnectionOptions,
    ) -> _Keys:
        keys = _Keys(only=bool(options.config.get("IdentitiesOnly")))
        for file in files:
            if file in unlocked:
                keys._add([unlocked[file]], file)
            elif file.exists():
                keys._read(file)
            elif options.config.get("IdentityFile") is not None:
                keys.said.append(f"{file} (not there)")
        return keys

    def _read(self, file: Path) -> None:
        self.identities.extend(_public_half(file))
        try:
            self._add(asyncssh.load_keypairs([str(file)]), file)
        except asyncssh.KeyEncryptionError:
            self._lock(file)
        except ValueError as error:
            if "assphrase" in str(error):
                self._lock(file)
            elif not _public_half(file):
                self.said.append(f"{file} (cannot be read: {printable(str(error), 80)})")
        except OSError as error:
            self.said.append(f"{file} ({error.strerror})")

    def _lock(self, file: Path) -> None:
        self.locked.append(file)
        self.said.append(f"{file} (needs a passphrase)")

    def _add(self, loaded: Sequence[Any], file: Path) -> None:
        self.usable.extend(loaded)
        self.identities.extend(key.public_data for key in loaded)
        self.said.append(str(file))


def _public_half(file: Path) -> list[bytes]:
    """The public key of a key file, from the file itself or the .pub beside it."""
    for path in (file, Path(f"{file}.pub")):
        try:
            return [asyncssh.read_public_key(path).public_data]
        except (ValueError, OSError):
            continue
    return []


class _SshChannel:
    def __init__(self, process: asyncssh.SSHClientProcess[bytes], name: str) -> None:
        self._process = process
        self._name = name
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._keep_stderr())

    async def _keep_stderr(self) -> None:
        try:
            while data := await self._process.stderr.read(4096):
                self._stderr += data
                del self._stderr[:-STDERR_KEPT]
        except (asyncssh.Error, OSError):
            pass  # the reader of standard output is told

    async def read(self, limit: int = 65536) -> bytes:
        try:
            return await self._process.stdout.read(limit)
        except (asyncssh.Error, OSError) as error:
            raise translate(error, self._name) from None

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError) as error:
            raise translate(error, self._name) from None

    def stderr_tail(self) -> bytes:
        return bytes(self._stderr)

    async def exit_status(self) -> int | None:
        await self._process.wait_closed()
        return self._process.returncode

    async def close(self) -> None:
        self._process.close()
        try:
            await asyncio.wait_for(self._process.wait_closed(), KEEPALIVE_INTERVAL)
        except asyncio.TimeoutError:
            pass  # a frozen host answers no close; dropping the connection is the host's to do
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)


# ---------------------------------------------------------------------- errors


def _refused_key(name: str, key_type: str, mark: str, finding: known_hosts.Finding) -> ConsoleError:
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


def _denied(who: str, via: str, keys: _Keys, error: asyncssh.Error) -> ConsoleError:
    tried = ", ".join(keys.said) or "no key file was found"
    where = f" (jump host {via})" if via else ""
    todo = "Add your public key to ~/.ssh/authorized_keys on the host"
    if keys.locked:
        todo = f"Unlock the key with `ssh-add {keys.locked[0]}`, or add another key on the host"
    return connect_error(
        f"Login refused: {who}{where}",
        f"{printable(error.reason)}. Tried: the keys of the ssh agent if one runs; {tried}.",
        f"{todo}, or name the right user and key (IdentityFile in your ssh configuration).",
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


def _no_session(error: asyncssh.ChannelOpenError, name: str) -> ConsoleError:
    return connect_error(
        f"{name} opens no further session",
        printable(error.reason) or "Its sshd refused the channel.",
        "Its sshd has reached MaxSessions or allows no sessions at all: close another console, or "
        "raise MaxSessions there.",
    )
