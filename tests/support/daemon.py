"""A real daemon in a temporary home, and clients that speak to it through real ``attach``.

The agent runs from a copy of its source in which ``preflight`` answers what a
profile's TEST_PREFLIGHT says; the profile's interpreter is the stand-in
worker.  All processes are real.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from eagle3_agent import paths, processes
from eagle3_agent.protocol import MAGIC, VERSION, Message, decode_message, encode
from eagle3_agent.protocol.messages import (
    Chunk,
    Detail,
    Done,
    GetRun,
    Hello,
    Refused,
    Start,
    Started,
    StreamName,
    Subscribe,
    Welcome,
)
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
    RunState,
    RunSummary,
)
from eagle3_agent.runs import RunFolder

T = TypeVar("T")

AGENT = Path(__file__).resolve().parents[2] / "agent"

_WORKER = Path(__file__).with_name("stand_in_worker.py")

_PREFLIGHT = """
import json, os, subprocess, sys, time
from ..protocol import dumps, from_json
from ..protocol.values import Report, Verdict
from .check import Ask, Outcome

def main(stdin, stdout):
    ask = from_json(Ask, json.loads(stdin.read()))
    what = ask.profile.host.env.get("TEST_PREFLIGHT", "")
    if what == "crash":
        sys.exit("ModuleNotFoundError: json")
    if what == "garbage":
        stdout.write(b"\\xff not json")
        return 0
    if what.startswith("hang:"):
        probe = subprocess.Popen(["sleep", "600"], start_new_session=True)
        stdout.write(b'{"done":1,"total":2,"waiting":["deep-compute"]}\\n')
        stdout.flush()
        open(what[5:], "w").write(f"{os.getpid()} {probe.pid}")
        probe.wait()
    blocked = open(what[5:]).read().split() if what.startswith("file:") else what.split()
    found = [Verdict(c, c.title(), "block", f"{c} is bad") for c in blocked]
    outcome = Outcome(
        Report((*found, Verdict("disk", "Disk", "pass", "1 GiB")), 0.0, time.time()),
        {"python": "3.11.7"},
        "transformers",
    )
    stdout.write(dumps(outcome).encode())
    return 1 if found else 0
"""


def eventually(true: Callable[[], T | None], seconds: float = 30.0) -> T:
    """What ``true`` returns once it is true; fails the test when it does not become so."""
    until = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < until, f"did not become true within {seconds} s"
        time.sleep(0.02)


class Home:
    """A temporary EAGLE3_HOME with the agent's archive and a stand-in interpreter."""

    def __init__(self, folder: Path, archive: str = "a" * 16, python: str = sys.executable) -> None:
        self.folder = folder
        self.python = python
        self.state = folder / "home" / "state"
        self.env = {**os.environ, "EAGLE3_HOME": str(folder / "home")}
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.root = make_root(folder / "root", archive)
        self.interpreter = make_interpreter(folder / "bin")
        self._wires: list[Wire] = []

    def profile(self, worker: str = "completed", out: str = "out", **env: str) -> Profile:
        """A profile whose worker plays ``worker`` and writes to the folder ``out``."""
        return Profile(
            name="test",
            host=HostSection(str(self.interpreter), {"TEST_WORKER": worker, **env}),
            model=ModelSection("/models/tiny"),
            capture=CaptureSection((1, 2)),
            data=DataSection("/data/x.jsonl"),
            output=OutputSection(str(self.folder / out)),
        )

    def agent(self, *arguments: str, root: Path | None = None) -> list[str]:
        return [self.python, "-E", "-s", str(root or self.root), *arguments]

    def attach(self, read_only: bool = False, root: Path | None = None, hello: bool = True) -> Wire:
        """A new client; the daemon is started if there is none."""
        wire = Wire(self.agent("attach", root=root), self.env)
        self._wires.append(wire)
        if hello:
            wire.hello(read_only)
        return wire

    def serve(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """A daemon that is this process's child, ready to be attached to."""
        reader, writer = os.pipe()
        child = subprocess.Popen(
            self.agent("serve", "--ready-fd", str(writer), *arguments),
            env={**self.env, **env},
            pass_fds=(writer,),
        )
        os.close(writer)
        with open(reader, "rb") as ready:
            assert ready.readline() == b"ready\n"
        return child

    @property
    def agent_folder(self) -> Path:
        return self.state / "agent" / os.uname().nodename

    @property
    def socket(self) -> Path:
        return paths.socket_path(self.agent_folder)

    def lease(self) -> dict[str, Any] | None:
        try:
            return cast(
                "dict[str, Any]", json.loads((self.agent_folder / "agent.json").read_text())
            )
        except (OSError, ValueError):
            return None

    def kill_daemon(self) -> None:
        """kill -9, as a person or the kernel would."""
        lease = self.lease()
        assert lease is not None
        who = processes.identity(lease["pid"])
        assert who is not None
        assert processes.send(who, signal.SIGKILL)
        eventually(lambda: not processes.alive(who))

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.state / "runs" / name)

    def close(self) -> None:
        """End everything that was started under this home, each by its identity."""
        for wire in self._wires:
            wire.close()
        lease = self.lease()
        daemon = processes.identity(lease["pid"]) if lease else None
        if daemon and b"serve" in Path(f"/proc/{daemon.pid}/cmdline").read_bytes():
            processes.send(daemon, signal.SIGTERM)
            eventually(lambda: not processes.alive(daemon))
        for folder in (self.state / "runs").glob("[0-9]*"):
            guardian = RunFolder(folder).guardian()
            if guardian:
                who = processes.Identity(guardian.pid, guardian.start_time)
                processes.send(who, signal.SIGKILL)
            for process in processes.marked(str(folder)):
                processes.send(process.identity, signal.SIGKILL)


class Wire:
    """One client: sends messages, sorts what comes back into replies and pushes."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._number = 0
        self._lines: queue.Queue[bytes] = queue.Queue()
        self.pushes: list[Message] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.greeting = self._lines.get(timeout=30)
        assert self.greeting.startswith(MAGIC), self.greeting

    def _read(self) -> None:
        assert self.process.stdout is not None
        with open(self.process.stdout.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(b"")

    def hello(self, read_only: bool = False) -> Welcome:
        reply = self.ask(Hello(0, VERSION, "test", read_only))
        assert isinstance(reply, Welcome)
        return reply

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def send(self, message: Any) -> int:
        """Send with a fresh id; returns the id."""
        self._number += 1
        self.send_line(encode(dataclasses.replace(message, id=self._number)))
        return self._number

    def next(self, seconds: float = 30.0) -> Message | None:
        """The next line, whatever it is; None when the connection ended."""
        line = self._lines.get(timeout=seconds)
        return decode_message(line) if line else None

    def ask(self, message: Any, seconds: float = 60.0) -> Message:
        """The reply; what else comes meanwhile is kept in ``pushes``."""
        number = self.send(message)
        until = time.monotonic() + seconds
        while True:
            got = self.next(until - time.monotonic())
            assert got is not None, "the connection ended"
            if getattr(got, "re", None) == number:
                return got
            self.pushes.append(got)

    def expect(self, kind: type[T], message: Any) -> T:
        reply = self.ask(message)
        assert isinstance(reply, kind), reply
        return reply

    def refused(self, message: Any) -> Refused:
        return self.expect(Refused, message)

    def start(self, profile: Profile, **options: Any) -> str:
        """Start a run that is not refused; returns its id."""
        return self.expect(Started, Start(0, profile, **options)).run

    def summary(self, run: str) -> RunSummary:
        return self.expect(Detail, GetRun(0, run)).detail.summary

    def ended(self, run: str, state: RunState) -> RunSummary:
        """The summary once the run has ended, which must be in ``state``."""

        def look() -> RunSummary | None:
            found = self.summary(run)
            return None if found.state in ("running", "queued") else found

        found = eventually(look, 60)
        assert found.state == state, found
        return found

    def read_stream(self, run: str, stream: StreamName, offset: int = 0) -> Iterator[Chunk]:
        """Chunks until the one that says that it is the last."""
        sub = self.send(Subscribe(0, run, stream, offset))
        while True:
            got = self.pushes.pop(0) if self.pushes else self.next()
            assert got is not None, "the connection ended"
            if isinstance(got, Chunk) and got.sub == sub:
                yield got
                if got.ended:
                    return
            elif isinstance(got, Refused):
                raise AssertionError(got)
            else:
                assert isinstance(got, Done), got

    def whole(self, run: str, stream: StreamName, offset: int = 0) -> bytes:
        """All bytes of a stream up to the run's end; offsets must follow each other."""
        data = b""
        for chunk in self.read_stream(run, stream, offset):
            assert chunk.offset == offset + len(data)
            data += chunk.raw()
        return data

    def whole_until(self, run: str, stream: StreamName, size: int) -> bytes:
        """The first ``size`` bytes or some more, of a run that goes on."""
        data = b""
        for chunk in self.read_stream(run, stream):
            data += chunk.raw()
            if len(data) >= size:
                break
        return data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def make_root(folder: Path, archive: str) -> Path:
    """A copy of the agent with a preflight that profiles steer, named ``archive``."""
    ignore = shutil.ignore_patterns("__pycache__", "worker")
    shutil.copytree(AGENT, folder, ignore=ignore)
    (folder / "ARCHIVE").write_text(archive + "\n")
    (folder / "eagle3_agent" / "preflight" / "command.py").write_text(_PREFLIGHT)
    return folder


def make_interpreter(folder: Path) -> Path:
    """An executable ``python`` that is the stand-in worker."""
    folder.mkdir()
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E -s "{_WORKER}" "$@"\n')
    path.chmod(0o755)
    return path
