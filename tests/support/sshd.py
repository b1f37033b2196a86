"""A real OpenSSH server on a loopback port, with keys and a home of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from . import needs

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def require_openssh() -> None:
    """Skip where OpenSSH's server is missing; in CI that is a failure."""
    if Path(SSHD).exists() and shutil.which("ssh-keygen"):
        return
    needs.missing("OpenSSH's sshd is not installed (Debian: openssh-server)")


def eventually(check: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    """Wait until ``check`` holds; fails the test by name when it never does."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:.0f} s: {what}")
        time.sleep(0.02)


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    """A key pair by ssh-keygen; returns the private half's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def children(pid: int) -> list[int]:
    """Direct children of a process, by /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found.extend(int(word) for word in task.read_text().split())
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Sshd:
    """One server; ``home`` is HOME of everybody who logs in."""

    folder: Path
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    def authorize(self, key: Path) -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(Path(f"{key}.pub").read_text())

    def known_line(self, name: str = "127.0.0.1") -> str:
        kind, key = Path(f"{self.host_key}.pub").read_text().split()[:2]
        return f"[{name}]:{self.port} {kind} {key}\n"

    def start(self) -> Sshd:
        self.home.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        if not self.host_key.exists():
            make_key(self.host_key)
        (self.folder / "authorized_keys").touch()
        self.port = self.port or free_port()
        # a session begins with nothing of the test's environment, and models run on its threads too
        threads = {name: value for name, value in os.environ.items() if "OMP_" in name}
        env = {"HOME": str(self.home), "EAGLE3_HOME": str(self.home / "e3"), **threads, **self.env}
        lines = [
            "ListenAddress 127.0.0.1",
            f"Port {self.port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "LogLevel VERBOSE",
            "PrintMotd no",
            "SetEnv " + " ".join(f'{name}="{value}"' for name, value in env.items()),
            *self.options,
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        command = [SSHD, "-D", "-f", str(config), "-E", str(self.log)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        eventually(self._listens, f"sshd listens on {self.port}")
        return self

    def _listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"sshd left: {self.log.read_text()}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def execs(self) -> int:
        """How many commands were started, by the server's own log."""
        return self.log.read_text(errors="replace").count("Starting session: ")

    def sessions(self) -> list[int]:
        """Pids of the processes that serve a connection."""
        assert self.process is not None
        return children(self.process.pid)

    def signal_sessions(self, number: int) -> None:
        for pid in self.sessions():
            for child in children(pid):
                if "sshd" in Path(f"/proc/{child}/comm").read_text():
                    os.kill(child, number)
            os.kill(pid, number)

    def stop(self) -> None:
        if self.process is None:
            return
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                self.signal_sessions(number)
            except (ProcessLookupError, FileNotFoundError):
                pass
        self.process.terminate()
        self.process.wait(10)
        self.process = None


@dataclass
class Agent:
    """A real ssh-agent."""

    folder: Path

    def __enter__(self) -> Agent:
        self.socket = self.folder / "agent.sock"
        command = ["ssh-agent", "-D", "-a", str(self.socket)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(self.socket.exists, "the ssh-agent's socket")
        return self

    def add(self, key: Path) -> None:
        env = {**os.environ, "SSH_AUTH_SOCK": str(self.socket)}
        subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)


def stop_daemons(home: Path) -> None:
    """End the agents that were started from a folder below ``home``, by pid after checking."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(os.fsencode(home)) for word in words):
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                pass


def servers(base: Path) -> Iterator[Callable[..., Sshd]]:
    """A fixture's body: makes servers below ``base`` and ends all of them, and their agents."""
    made: list[Sshd] = []

    def make(name: str = "host", *options: str, **env: str) -> Sshd:
        server = Sshd(base / name, options, env)
        server.folder.mkdir(parents=True, exist_ok=True)
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()
    stop_daemons(base)
