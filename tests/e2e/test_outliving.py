"""A real extraction over a real sshd while what serves it is killed, one after the other.

torch, transformers and SmolLM2 do the work; nothing is a stand-in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from eagle3_agent import processes
from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.events import Progress
from eagle3_agent.protocol.messages import Start, Started
from eagle3_console import demo, profile
from eagle3_console.errors import ExitCode
from eagle3_console.link import Link
from eagle3_console.linkstate import LinkState, Live, Piece, Reconnecting
from support import tiny
from support.links import read_all, until
from support.local import job
from support.sshd import children, eventually
from support.workstation import ALIAS, Workstation

pytestmark = [pytest.mark.ssh, pytest.mark.worker]

ROWS = 24


def conversations(made_demo: demo.DemoFiles, folder: Path) -> Path:
    lines = made_demo.data.read_text().splitlines(keepends=True)[:ROWS]
    path = folder / "conversations.jsonl"
    path.write_text("".join(lines))
    return path


def smollm(desk: Workstation, made_demo: demo.DemoFiles) -> str:
    """The demo's model over the first two dozen of its conversations."""
    data = conversations(made_demo, desk.folder)
    settings = job(made_demo.python, made_demo.model, data, desk.folder / "out")
    return desk.profile("smollm", **{**settings, "capture__layers": "[2, 15, 27, 29]"})


def is_whole(output: Path) -> bool:
    """Every file that the manifest names has its size and checksum, and no other is there."""
    entries = [json.loads(line) for line in (output / "manifest.jsonl").read_bytes().splitlines()]
    for entry in entries:
        data = (output / entry["file"]).read_bytes()
        assert len(data) == entry["bytes"]
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    there = {path.name for path in output.iterdir()}
    beside = json.loads((output / "extras.json").read_bytes())["files"]
    ours = {"manifest.jsonl", "eagle3.json", "extras.json", *beside}
    assert there == {entry["file"] for entry in entries} | ours
    return len(entries) == ROWS


class Killer:
    """Kills one thing after the other as the run goes on; each must be noticed and mended."""

    def __init__(self, desk: Workstation) -> None:
        self._desk = desk
        self.states: list[LinkState] = []
        self.killed: list[str] = []
        self.at: list[int] = []
        self._rest = b""

    def losses(self) -> int:
        return sum(isinstance(s, Reconnecting) and s.attempt == 1 for s in self.states)

    async def look(self, piece: Piece) -> None:
        """Kill the next thing once the events tell of enough samples."""
        *lines, self._rest = (self._rest + piece.data).split(b"\n")
        told = [event for event in map(decode_event, lines) if isinstance(event, Progress)]
        due = (2, 7, 12)
        if not told or len(self.killed) == len(due) or told[-1].done < due[len(self.killed)]:
            return
        await until(lambda: isinstance(self.states[-1], Live), "the link is up")
        name, act = (
            ("the agent", self._daemon),
            ("the connection", self._connection),
            ("attach", self._attach),
        )[len(self.killed)]
        act()
        self.killed.append(name)
        self.at.append(told[-1].done)
        await until(lambda: self.losses() == len(self.killed), f"the loss of {name} is noticed")

    def _daemon(self) -> None:
        pid = self._desk.daemon()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def _connection(self) -> None:
        assert self._desk.server.sessions()
        self._desk.server.signal_sessions(signal.SIGKILL)

    def _attach(self) -> None:
        served = self._desk.server.sessions()
        found: list[int] = []
        while served:
            pid = served.pop()
            served += children(pid)
            if " attach" in processes.command(pid):
                found.append(pid)
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)


async def test_a_real_run_outlives_agent_connection_and_attach(
    desk: Workstation, made_demo: demo.DemoFiles
) -> None:
    path = smollm(desk, made_demo)
    killer = Killer(desk)
    link = Link(desk.host(), on_state=killer.states.append)
    await link.connect()
    try:
        started = await link.ask(Start(0, profile.load(Path(path), [])), None)
        assert isinstance(started, Started)
        output, events = await asyncio.wait_for(
            asyncio.gather(
                read_all(link.stream(started.run, "output")),
                read_all(link.stream(started.run, "events"), killer.look),
            ),
            150,
        )
    finally:
        await link.close()
    assert killer.killed == ["the agent", "the connection", "attach"]
    assert killer.at[-1] < ROWS, "the run had ended before the last kill"

    folder = desk.folder_of(started.run)
    assert output == folder.output.read_bytes()
    assert events == folder.events.read_bytes()
    assert is_whole(desk.folder / "out")

    shown = desk.run("show", ALIAS, started.run, "--json").object
    assert shown["state"] == "completed"
    assert shown["samples"] == {"total": ROWS, "done": ROWS, "skipped": 0}
    checked = desk.run("verify", ALIAS, started.run, "--samples", "2", "--json")
    assert checked.code == ExitCode.DONE, checked.err
    assert (checked.object["ok"], checked.object["files"]) == (True, ROWS)


def test_a_run_without_its_supervisor_is_lost_and_abort_ends_its_worker(
    desk: Workstation, worker_python: Path, tiny_model: Path
) -> None:
    data = tiny.write_jsonl(desk.folder / "rows.jsonl", tiny.rows(6000))
    path = desk.profile(**job(worker_python, tiny_model, data, desk.folder / "out"))
    started = desk.run("start", ALIAS, "-p", path, "--json")
    assert started.code == ExitCode.DONE, started.err
    run = started.object["run"]
    folder = desk.folder_of(run)
    eventually(lambda: bool(list((desk.folder / "out").glob("data_*.pt"))), "a sample", 90)
    guardian = folder.guardian()
    assert guardian is not None
    os.kill(guardian.pid, signal.SIGKILL)
    eventually(
        lambda: desk.run("show", ALIAS, run, "--json").object["state"] == "lost", "it is lost"
    )
    assert any("eagle3_agent.worker" in processes.command(p.pid) for p in desk.processes_of(run))

    again = desk.run("resume", ALIAS, run)
    assert again.code != ExitCode.DONE  # its worker still writes there
    assert "leftovers" in again.err, again.err
    ended = desk.run("abort", ALIAS, run, "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert "were ended" in ended.out
    assert desk.processes_of(run) == []

    few = desk.run("resume", ALIAS, run, "--json")
    assert few.code == ExitCode.DONE, few.err
    assert few.object["attempt"] == 2
