"""The user's private keys: which can be used, which need a passphrase, what an agent may offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from eagle3_console.hosts import printable


@dataclass
class Keys:
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
    ) -> Keys:
        keys = Keys(only=bool(options.config.get("IdentitiesOnly")))
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


async def agent_keys(socket: str) -> list[str]:
    """One phrase a key that the agent holds; empty when there is no agent."""
    if not socket:
        return []
    try:
        async with asyncssh.connect_agent(socket) as agent:
            pairs = await agent.get_keys()
    except (OSError, ValueError, asyncssh.Error):
        return []
    comments = [printable(pair.get_comment_bytes() or b"", 60) or "no comment" for pair in pairs]
    return [f"{comment} (ssh agent)" for comment in comments]
