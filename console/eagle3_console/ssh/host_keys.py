"""The other side's key during one attempt: what is asked for, what was shown, what is trusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from . import known_hosts

#: Key type -> signature algorithms, in the order of preference; SHA-1 is not among them.
_HOST_KEYS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True)
class Shown:
    """The host key that an attempt met and that known_hosts does not vouch for."""

    host: str
    port: int | None
    """None where a HostKeyAlias stands for host and port alike."""
    key_type: str
    key: str


class Known:
    """The known_hosts files that count for one host."""

    def __init__(self, user: Sequence[Path], system: Sequence[Path]) -> None:
        self.user = tuple(user) or (Path(os.devnull),)
        self._files = (*self.user, *system)

    def look_up(self, shown: Shown) -> known_hosts.Finding:
        return known_hosts.look_up(self._files, shown.host, shown.port, shown.key_type, shown.key)

    def types(self, host: str, port: int | None) -> set[str]:
        """The types of the keys known of a host; ``authority`` where one signs for it."""
        exact = known_hosts.matching(self._files, host, port)
        found = exact or known_hosts.matching(self._files, host, None)
        return {
            "authority" if entry.marker == "cert-authority" else entry.key_type
            for entry in found
            if entry.marker != "revoked"
        }

    def authorities(
        self, host: str, port: int | None
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        """(host keys, certificate authorities, revoked keys), as asyncssh wants them.

        No host key is among them: so every plain key is put to ``validate_host_public_key``, and
        ``look_up`` is the one judge of it.  The revoked ones count for certificates.
        """
        found: dict[str, list[asyncssh.SSHKey]] = {"cert-authority": [], "revoked": []}
        exact = known_hosts.matching(self._files, host, port)
        for entry in exact or known_hosts.matching(self._files, host, None):
            if entry.marker in found:
                try:
                    found[entry.marker].append(asyncssh.import_public_key(entry.public))
                except asyncssh.KeyImportError:
                    continue
        authorities = found["cert-authority"]
        return [], authorities, found["revoked"] if authorities else []


def _key_algorithms(known: Known, options: asyncssh.SSHClientConnectionOptions) -> tuple[str, ...]:
    """Host key types to ask for: those known of this host first, so that it shows a known key.

    The others follow, so that a host without its known key shows another and is told apart from
    one that shares no algorithm.  Empty where the configuration says HostKeyAlgorithms.
    """
    if options.config.get("HostKeyAlgorithms") is not None:
        return ()
    alias = options.host_key_alias
    names = known.types(alias or options.host, None if alias else options.port)
    order = [
        algorithm
        for kind, algorithms in _HOST_KEYS.items()
        for algorithm in algorithms
        if kind in names
    ]
    order += [algorithm for algorithms in _HOST_KEYS.values() for algorithm in algorithms]
    certificates = (f"{algorithm}-cert-v01@openssh.com" for algorithm in dict.fromkeys(order))
    return (*(certificates if "authority" in names else ()), *dict.fromkeys(order))


class Client(asyncssh.SSHClient):
    """Watches one attempt: which host key was shown, whether a password would help."""

    def __init__(self, known: Known, vouched: set[tuple[str, str]], alias: bool) -> None:
        self.shown: Shown | None = None
        self.password_wanted = False
        self._known = known
        self._vouched = vouched
        self._alias = alias

    def _port(self, port: int | None) -> int | None:
        # OpenSSH writes and reads an alias without its port
        return None if self._alias else port

    def trusted(
        self, host: str, addr: str, port: int | None
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        # by the name alone: what is known of an address says nothing about a name that moved
        return self._known.authorities(host, self._port(port))

    def algorithms(self, options: asyncssh.SSHClientConnectionOptions) -> tuple[str, ...]:
        return _key_algorithms(self._known, options)

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        # asked for every plain key, known, unknown and changed alike
        key_type, text = key.export_public_key("openssh").decode("ascii").split()[:2]
        self.shown = Shown(host, self._port(port), key_type, text)
        finding = self._known.look_up(self.shown)
        if finding.verdict == "known":
            return True
        name = known_hosts.spelled(host, self.shown.port)
        return finding.verdict == "unknown" and (name, text) in self._vouched

    def password_auth_requested(self) -> str | None:
        self.password_wanted = True
        return None

    def kbdint_auth_requested(self) -> str | None:
        self.password_wanted = True
        return None
