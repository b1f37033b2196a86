"""Actions over the wire: a real daemon, its real checks, and what an earlier run left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import archive, paths, processes
from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.actions.offers import FileInfo, Target
from eagle3_agent.protocol.messages import (
    Abort,
    Act,
    Acted,
    AgentStatus,
    Done,
    Status,
    StopAgent,
)
from eagle3_agent.protocol.values import Action
from eagle3_agent.server import acting
from eagle3_agent.server.agent import Agent
from eagle3_agent.server.launch import Launcher
from support.daemon import Home, eventually
from support.preflight import gone, until
from support.real_processes import STUBBORN, Start, starting


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


def leave(home: Home, start: Start, argv: list[str] | None = None) -> int:
    """A process that carries the mark of a run of this home which nobody guards."""
    mark = {**os.environ, processes.RUN_VARIABLE: str(home.state / "runs" / "0003")}
    return start(argv or ["sleep", "600"], env=mark)


def ending(pid: int) -> Action:
    """The action that check ``leftovers`` offers for it."""
    who = processes.identity(pid)
    assert who is not None
    made = offers.terminate([Target(pid, who.start_time)], "left by run 0003")
    assert made is not None
    return made


def act(home: Home, action: Action, check: str = "leftovers") -> Act:
    return Act(0, home.profile(), check, action)


def record(home: Home) -> list[dict[str, Any]]:
    path = home.agent_folder / "actions.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_a_leftover_is_ended_checked_again_and_written_down(home: Home, start: Start) -> None:
    pid = leave(home, start)
    done = home.attach().expect(Acted, act(home, ending(pid)))
    assert done.done[0] == f"SIGTERM sent to pid {pid}"
    assert f"pid {pid} left" in done.done[1]
    assert (done.verdict.check, done.verdict.status, done.helped) == ("leftovers", "pass", True)
    assert gone(pid)
    asked, ended = record(home)
    assert (asked["what"], ended["what"]) == ("asked", "done")
    assert asked["who"] == f"{processes.user(os.getpid())}, test"
    assert abs(asked["t"] - time.time()) < 60
    assert ended["action"]["processes"][0]["pid"] == pid
    assert tuple(ended["lines"]) == done.done
    assert stat.S_IMODE((home.agent_folder / "actions.jsonl").stat().st_mode) == 0o600
    log = (home.agent_folder / "agent.log").read_text()
    assert f"action done for {processes.user(os.getpid())}, test: End pid {pid}" in log


def test_a_client_that_only_reads_is_refused(home: Home, start: Start) -> None:
    pid = leave(home, start)
    refused = home.attach(read_only=True).refused(act(home, ending(pid)))
    assert refused.problem.title == "This connection only reads"
    assert not gone(pid)
    assert record(home) == []


def test_what_no_check_offers_is_refused_and_written_down(home: Home, start: Start) -> None:
    innocent, pid = start(["sleep", "600"]), leave(home, start)
    wire = home.attach()
    for action, check in (
        (ending(innocent), "leftovers"),
        (replace(ending(pid), processes=ending(innocent).processes), "leftovers"),
        (ending(pid), "disk"),
        (ending(pid), "no-such-check"),
    ):
        assert wire.refused(act(home, action, check)).problem.code == "refused"
    assert not gone(innocent)
    assert not gone(pid)
    assert [entry["what"] for entry in record(home)] == ["asked", "refused"] * 4


def test_the_second_of_two_is_told_what_is_so_now(home: Home, start: Start) -> None:
    pid = leave(home, start)
    first, second = home.attach(), home.attach()
    action = act(home, ending(pid))
    first.send(action)
    refused = second.ask(action)
    won = first.next()
    texts = {type(won).__name__, type(refused).__name__}
    assert texts == {"Acted", "Refused"}
    assert gone(pid)


def test_an_action_goes_on_when_its_client_leaves(home: Home, start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    pid = leave(home, start, [*STUBBORN, str(ready)])
    until(ready.exists)
    wire = home.attach()
    wire.send(act(home, ending(pid)))
    eventually(lambda: len(record(home)) == 1)
    wire.process.kill()
    eventually(lambda: gone(pid), offers.PATIENCE + 20)
    ended = eventually(lambda: record(home)[1:])[0]
    assert ended["what"] == "done"
    assert f"SIGKILL sent to pid {pid}" in ended["lines"]


def test_an_action_goes_on_when_its_agent_is_killed_and_the_next_one_says_so(
    home: Home, start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    pid = leave(home, start, [*STUBBORN, str(ready)])
    until(ready.exists)
    wire = home.attach()
    agent = wire.expect(Status, AgentStatus(0)).pid
    wire.send(act(home, ending(pid)))
    # the process that acts has begun: from here on it needs no agent
    eventually(lambda: any(p.pid != agent for p in processes.descendants(agent)))
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: gone(pid), offers.PATIENCE + 20)
    assert [entry["what"] for entry in record(home)] == ["asked"]
    home.attach().refused(act(home, Action("x", "terminate", "t", ())))
    told = [(entry["what"], entry["action"]["id"]) for entry in record(home)]
    assert told[:3] == [
        ("asked", f"terminate-{pid}"),
        ("unheard", f"terminate-{pid}"),
        ("asked", "x"),
    ]


def test_an_agent_that_is_told_to_leave_finishes_its_action(
    home: Home, start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    pid = leave(home, start, [*STUBBORN, str(ready)])
    until(ready.exists)
    wire, other = home.attach(), home.attach()
    wire.send(act(home, ending(pid)))
    eventually(lambda: len(record(home)) == 1)
    other.expect(Done, StopAgent(0))
    assert gone(pid)
    assert isinstance(wire.next(), Acted)


def test_what_cannot_be_written_down_is_not_done(home: Home, start: Start) -> None:
    pid = leave(home, start)
    wire = home.attach()
    (home.agent_folder / "actions.jsonl").mkdir()
    refused = wire.refused(act(home, ending(pid)))
    assert "actions.jsonl" in refused.problem.happened
    assert not gone(pid)


def test_what_is_done_and_cannot_be_written_down_is_told(
    home: Home, start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    pid = leave(home, start, [*STUBBORN, str(ready)])
    until(ready.exists)
    wire = home.attach()
    wire.send(act(home, ending(pid)))
    eventually(lambda: len(record(home)) == 1)
    path = home.agent_folder / "actions.jsonl"
    path.unlink()
    path.mkdir()
    done = wire.next()
    assert isinstance(done, Acted)
    assert f"could not be written down in {path}" in done.done[-1]
    assert gone(pid)


@pytest.mark.parametrize("path", ["\0", "", "/\ud800", "relative"])
def test_a_path_that_none_can_have_is_refused_and_its_end_written_down(
    home: Home, path: str
) -> None:
    forged = Action("x", "move-aside", "\x1b[31m", (), path=path, aside=f"{path}.aside")
    refused = home.attach().refused(act(home, forged, "output"))
    assert refused.problem.title == "That is not offered any more"
    assert [entry["what"] for entry in record(home)] == ["asked", "refused"]


def test_a_fault_after_the_record_is_written_down_as_well(home: Home) -> None:
    """The record never says ``asked`` alone for what the agent itself saw end."""
    agent = Agent(idle=60.0, silence=60.0)
    paths.private_dir(paths.agent_dir())
    asked = act(home, Action("x", "terminate", "t", ()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "command", lambda *_: ["/nonexistent"])
        with pytest.raises(OSError, match="nonexistent"):
            asyncio.run(acting.act(agent, Launcher(agent), asyncio.Lock(), "test", asked))
    lines = acting.record_path().read_bytes().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["asked", "failed"]


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        Agent(idle=60.0, silence=60.0).log("words")
        with contextlib.suppress(OSError):
            full.close()


@pytest.mark.parametrize("above", [False, True])
def test_the_output_of_a_run_that_goes_on_is_not_moved(home: Home, above: bool) -> None:
    wire = home.attach()
    profile = home.profile("hold", out="outs/one")
    out = Path(profile.output.dir)
    out.mkdir(parents=True)
    run = wire.start(profile)
    path = out.parent if above else out
    info = path.stat()
    action = offers.move_aside(str(path), FileInfo(info.st_dev, info.st_ino), time.time())
    refused = wire.refused(Act(0, profile, "output", action))
    assert refused.problem.code == "busy"
    assert f"run {run} is running and writes to {out}" in refused.problem.happened
    assert out.is_dir()
    wire.expect(Done, Abort(0, run))
