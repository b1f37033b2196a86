"""An engineer's workstation: its own HOME with ssh keys, and the real command line in it.

Commands are processes that reach a real sshd through the alias ``gpu``; what
they start on that host lies in the server's home.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path

from eagle3_agent import processes
from eagle3_agent.runs import RunFolder
from eagle3_console.address import Address
from eagle3_console.ssh import SshHost
from eagle3_console.ssh.config import SshFiles

from .local import Local
from .sshd import Sshd, make_key

ALIAS = "gpu"


class Workstation(Local):
    """``close`` ends the runs and the agent that were started on the host."""

    def __init__(self, folder: Path, server: Sshd) -> None:
        self.server = server
        self.ssh = folder / "home" / ".ssh"
        self.ssh.mkdir(parents=True, mode=0o700)
        self.key = make_key(self.ssh / "id_ed25519")
        self.config = self.ssh / "config"
        self.known_hosts = self.ssh / "known_hosts"
        self.config.write_text(
            f"Host {ALIAS}\n  HostName 127.0.0.1\n"
            f"  Port {server.port}\n  User {getpass.getuser()}\n"
        )
        server.authorize(self.key)
        super().__init__(folder / "console", folder)
        self.env["HOME"] = str(folder / "home")
        self.env.pop("SSH_AUTH_SOCK", None)

    def know_host(self) -> None:
        """As if the host key's question had been answered before."""
        self.known_hosts.write_text(self.server.known_line())

    def host(self) -> SshHost:
        """The same server for a link in this process."""
        files = SshFiles(folder=self.ssh, config=(self.config,), agent="")
        return SshHost(Address(ALIAS), ask_host_key=None, files=files)

    # ------------------------------------------------------------------ the host's side

    @property
    def state(self) -> Path:
        """The agent's state folder on the host."""
        return self.server.home / "e3" / "state"

    def folder_of(self, run: str) -> RunFolder:
        return RunFolder(self.state / "runs" / run)

    def daemon(self) -> int | None:
        """The pid of the agent that runs on the host."""
        for lease in self.state.glob("agent/*/agent.json"):
            pid = int(json.loads(lease.read_text())["pid"])
            found = processes.read(pid)
            if found is not None and found.running and "serve" in processes.command(pid):
                return pid
        return None

    def processes_of(self, run: str) -> list[processes.Process]:
        """The worker of a run and everything that it started, whatever became of their parents."""
        folder = self.folder_of(run)
        spawned = folder.standing().spawned
        return processes.marked(str(folder.path), spawned.worker if spawned else 0)

    def close(self) -> None:
        if self.daemon() is None and not list(self.state.glob("runs/*/run.json")):
            return  # a test that never got as far
        self.know_host()
        listed = self.run("runs", ALIAS, "--json")
        for run in listed.object["runs"] if listed.code == 0 else ():
            if run["state"] in ("running", "queued", "lost"):
                self.run("abort", ALIAS, run["run"], "--yes")
        self.run("agent", "stop", ALIAS)
