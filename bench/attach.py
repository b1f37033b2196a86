"""`attach`: one whole contact with a host whose agent runs already, as `agent status` makes it.

Connect, find the agent's interpreter and archive, join the daemon, greet, ask
for the status, close.  The peer is the least that the same way can cost: one
interpreter that starts and ends (local), one command over OpenSSH (ssh).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.protocol.messages import AgentStatus, Status
from eagle3_console.address import Address
from eagle3_console.hosts import Host
from eagle3_console.link import Link
from eagle3_console.local import LocalHost
from eagle3_console.ssh import SshFiles, SshHost

from . import places
from .measure import Benchmark, Comparison, LeftOut, Result, Say, take_turns

TESTS = Path(__file__).resolve().parents[1] / "tests"


async def run(rounds: int, say: Say) -> list[Result]:
    return [await _local(rounds, say), await _ssh(rounds, say)]


async def contact(make: Callable[[], Host]) -> float:
    """Seconds from nothing to the status and to a closed link."""
    began = time.perf_counter()
    link = Link(make())
    try:
        await link.connect()
        if not isinstance(await link.ask(AgentStatus(0)), Status):
            raise RuntimeError("the agent did not tell its status")
    finally:
        await link.close()
    return time.perf_counter() - began


async def command(*argv: str) -> float:
    """Seconds from the start to the end of a program."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    status = await process.wait()
    seconds = time.perf_counter() - began
    if status != 0:
        raise RuntimeError(f"{argv[0]} ended with status {status}")
    return seconds


async def _local(rounds: int, say: Say) -> Result:
    with places.own_home():
        async with places.linked():
            values = await take_turns(
                {
                    "ours": lambda: contact(LocalHost),
                    "peer": lambda: command(sys.executable, "-c", "pass"),
                },
                rounds,
                lambda text: say(f"local, {text}"),
            )
    return Comparison(
        "attach.local",
        "connect to the running local agent, ask its status, close",
        "python3 -c pass",
        "s",
        "lower",
        values["ours"],
        values["peer"],
    )


async def _ssh(rounds: int, say: Say) -> Result:
    name = "attach.ssh"
    if not (shutil.which("ssh") and shutil.which("ssh-keygen") and _sshd()):
        return LeftOut(name, "OpenSSH's client and server are not both installed")
    with places.own_home() as home, _server(home / "ssh") as place:
        async with places.linked(place.host()):
            values = await take_turns(
                {
                    "ours": lambda: contact(place.host),
                    "peer": lambda: command(*place.argv, "true"),
                },
                rounds,
                lambda text: say(f"ssh, {text}"),
            )
    return Comparison(
        name,
        "the same over ssh to a loopback sshd, login included",
        "ssh host true",
        "s",
        "lower",
        values["ours"],
        values["peer"],
    )


def _sshd() -> bool:
    return bool(shutil.which("sshd")) or Path("/usr/sbin/sshd").exists()


@dataclass(frozen=True)
class _Place:
    """A server, and who may log in to it."""

    port: int
    folder: Path

    def host(self) -> Host:
        files = SshFiles(
            folder=self.folder,
            config=(self.folder / "config",),
            known_hosts=(self.folder / "known_hosts",),
            global_known_hosts=(self.folder / "none",),
            agent="",
        )
        return SshHost(Address("127.0.0.1", None, self.port), files=files)

    @property
    def argv(self) -> tuple[str, ...]:
        """OpenSSH's client with the same key and the same knowledge of the host."""
        options = (
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "GlobalKnownHostsFile=none",
        )
        named = [word for option in options for word in ("-o", option)]
        key = str(self.folder / "id_ed25519")
        return ("ssh", "-F", "none", "-i", key, *named, "-p", str(self.port), "127.0.0.1")


@contextmanager
def _server(folder: Path) -> Iterator[_Place]:
    """The tests' own loopback server, with one key."""
    sys.path.append(str(TESTS))
    from support import sshd

    user = folder / "user"
    user.mkdir(parents=True, mode=0o700)
    (user / "config").touch()
    key = sshd.make_key(user / "id_ed25519")
    server = sshd.Sshd(folder / "host")
    server.folder.mkdir()
    try:
        server.start()
        server.authorize(key)
        (user / "known_hosts").write_text(server.known_line())
        yield _Place(server.port, user)
    finally:
        server.stop()
        sshd.stop_daemons(folder)


BENCHMARK = Benchmark(
    name="attach",
    measures="a whole warm contact with an agent, local and over ssh",
    peer="python3 -c pass; ssh host true",
    why="every headless command and every reconnect begins with it",
    rounds=11,
    run=run,
)
