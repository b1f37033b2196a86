"""A user's ssh folder and real servers, all below a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eagle3_console.address import Address
from eagle3_console.hosts import HostKeyQuestion, SecretQuestion
from eagle3_console.ssh import SshHost
from eagle3_console.ssh.config import SshFiles
from support import sshd
from support.sshd import Sshd


@dataclass
class User:
    """Somebody at a workstation: their ~/.ssh, and how they answer."""

    folder: Path
    vouch: bool = True
    secrets: list[str] = field(default_factory=list)
    asked: list[HostKeyQuestion] = field(default_factory=list)
    asked_secrets: list[SecretQuestion] = field(default_factory=list)
    agent: str = ""

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def files(self) -> SshFiles:
        return SshFiles(
            folder=self.folder,
            config=(self.config,),
            global_known_hosts=(self.folder / "global_known_hosts",),
            agent=self.agent,
        )

    def host(self, server: Sshd | str, *, ask: bool = True) -> SshHost:
        """A host at a server's address, or by an alias of the config."""
        address = (
            Address(server) if isinstance(server, str) else Address("127.0.0.1", None, server.port)
        )
        return SshHost(
            address,
            ask_host_key=self.ask_key if ask else None,
            ask_secret=self.ask_secret,
            files=self.files(),
        )

    async def ask_key(self, question: HostKeyQuestion) -> bool:
        self.asked.append(question)
        return self.vouch

    async def ask_secret(self, question: SecretQuestion) -> str | None:
        self.asked_secrets.append(question)
        return self.secrets.pop(0) if self.secrets else None


@pytest.fixture(autouse=True)
def _openssh() -> None:
    sshd.require_openssh()


@pytest.fixture
def user(tmp_path: Path) -> User:
    """With a key, and nothing known."""
    folder = tmp_path / "user"
    folder.mkdir(mode=0o700)
    sshd.make_key(folder / "id_ed25519")
    return User(folder)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Makes servers that are not yet started."""
    yield from sshd.servers(tmp_path)


@pytest.fixture
def server(make: Callable[..., Sshd], user: User) -> Sshd:
    """A server that knows the user's key and that the user knows."""
    host = make().start()
    host.authorize(user.key)
    user.known_hosts.write_text(host.known_line())
    return host
