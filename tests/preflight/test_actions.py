"""Actions taken: real processes ended, and an action from its offer to the check made again."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import paths, processes, runs
from eagle3_agent.cgroups import Place
from eagle3_agent.preflight import catalogue
from eagle3_agent.preflight.actions import perform, signals
from eagle3_agent.preflight.actions.refused import NotTaken
from eagle3_agent.preflight.running import guard
from eagle3_agent.protocol import dumps, from_json
from eagle3_agent.protocol.values import Action, ProcessRef, Verdict
from support.preflight import gone, profile, until
from support.real_processes import STUBBORN, Start, starting


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


def ref(pid: int) -> ProcessRef:
    who = processes.identity(pid)
    assert who is not None
    return ProcessRef(who.pid, who.start_time)


# ------------------------------------------------------------------ processes


def test_a_process_that_heeds_term_leaves_with_it(start: Start) -> None:
    pid = start(["sleep", "600"])
    began = time.monotonic()
    first, second = signals.end([ref(pid)])
    assert first == f"SIGTERM sent to pid {pid}"
    assert second.startswith(f"pid {pid} left 0.")
    assert second.endswith("after SIGTERM")
    assert time.monotonic() - began < 3.0
    assert gone(pid)


def test_a_process_that_ignores_term_is_killed_and_the_rest_is_not(
    start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    stubborn, meek = start([*STUBBORN, str(ready)]), start(["sleep", "600"])
    bystander = start(["sleep", "600"])
    until(ready.exists)
    lines = signals.end([ref(stubborn), ref(meek)], patience=0.5)
    assert lines[0] == f"SIGTERM sent to pid {stubborn}, {meek}"
    assert f"SIGKILL sent to pid {stubborn}" in lines
    assert any(line.startswith(f"pid {stubborn} left 0.0 s after SIGKILL") for line in lines)
    assert gone(stubborn)
    assert gone(meek)
    assert not gone(bystander)


def test_a_pid_that_passed_to_another_is_left_alone_and_so_are_the_others(start: Start) -> None:
    pid, other = start(["sleep", "600"]), start(["sleep", "600"])
    then = replace(ref(pid), start_time=ref(pid).start_time - 1)
    with pytest.raises(NotTaken, match="another one now"):
        signals.end([ref(other), then])
    assert not gone(pid)
    assert not gone(other)


def test_one_that_left_meanwhile_is_told_and_the_others_are_ended(start: Start) -> None:
    left, other = start(["sleep", "600"]), start(["sleep", "600"])
    who = ref(left)
    os.kill(left, signal.SIGKILL)
    until(lambda: gone(left))
    lines = signals.end([who, ref(other)])
    assert lines[0] == f"pid {left} had left already"
    assert gone(other)


def test_without_pidfds_the_same_holds(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    ready = tmp_path / "ready"
    stubborn, meek = start([*STUBBORN, str(ready)]), start(["sleep", "600"])
    until(ready.exists)
    lines = signals.end([ref(stubborn), ref(meek)], patience=0.3)
    assert f"SIGKILL sent to pid {stubborn}" in lines
    assert gone(stubborn)
    assert gone(meek)


@pytest.mark.parametrize("pid_of", [os.getpid, os.getppid, lambda: 1], ids=["own", "parent", "1"])
def test_the_agent_what_it_runs_under_and_pid_1_are_not_ended(pid_of: Callable[[], int]) -> None:
    pid = pid_of()
    assert guard.spared([pid])
    with pytest.raises(NotTaken):
        signals.end([ref(pid)])


def test_a_run_that_goes_on_is_not_ended_by_an_action(start: Start) -> None:
    supervisor, name = start(["sleep", "600"]), processes.RUN_VARIABLE
    folder = runs.create(profile(), "transformers", attempt=1)
    who, host = ref(supervisor), os.uname().nodename
    folder.write_guardian(runs.Guardian(who.pid, who.start_time, processes.boot_id(), host))
    worker = start(["sleep", "600"], env={**os.environ, name: str(folder.path)})
    for pid, words in ((worker, f"of run {folder.run}, which goes on"), (supervisor, "it guards")):
        with pytest.raises(NotTaken, match=words):
            signals.end([ref(pid)])
    folder.write_exit(runs.Exit("failed", time.time()))
    signals.end([ref(worker)])
    assert gone(worker)


def test_another_users_process_is_spared_by_who_may_not_signal_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(["sleep", "600"])
    assert guard.spared([pid]) == {}
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert "the agent runs as user 54321" in guard.spared([pid])[pid]


def test_what_lives_in_a_container_or_job_is_ended_with_that() -> None:
    here, there = Place(), Place(container="docker 4f1c2ab90d21")
    assert "in container docker 4f1c2ab90d21" in guard.of_elsewhere(there, here)
    assert guard.of_elsewhere(there, there) == ""
    assert "in job slurm 12" in guard.of_elsewhere(Place(job="slurm 12"), here)
    assert guard.of_elsewhere(Place(job="slurm 12"), Place(job="slurm 12")) == ""
    assert guard.of_elsewhere(Place("vllm.service"), here) == ""


def test_threads_of_the_kernel_are_spared() -> None:
    threads = [p for p in processes.table().values() if p.parent == 2]
    if not threads:
        pytest.skip("no kernel thread can be seen here; not on this machine")
    assert guard.of_host(threads[0]) == "a thread of the kernel"


# ------------------------------------------------------------------ the whole of one action


def asked(action: Action, check: str = "leftovers") -> perform.Request:
    return perform.Request(profile(), check, action)


def leftover(start: Start, folder: str = "0003") -> int:
    mark = {**os.environ, processes.RUN_VARIABLE: str(paths.runs_dir() / folder)}
    return start(["sleep", "600"], env=mark)


def offered(check: str = "leftovers") -> Verdict:
    found = next(c for c in catalogue.CHECKS if c.id == check)
    return perform.look(found, profile())


def test_a_leftover_is_ended_and_the_check_made_again_says_so(start: Start) -> None:
    pid = leftover(start)
    before = offered()
    assert before.status == "block"
    result = perform.perform(asked(before.actions[0]))
    assert result.refusal is None
    assert result.done[0] == f"SIGTERM sent to pid {pid}"
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    assert result.helped
    assert gone(pid)


def test_an_action_that_nobody_offered_is_refused(start: Start) -> None:
    innocent, pid = start(["sleep", "600"]), leftover(start)
    (real,) = offered().actions
    for invented in (
        replace(real, processes=(ref(innocent),)),
        replace(real, processes=(*real.processes, ref(innocent))),
        replace(real, id=f"terminate-{innocent}"),
        Action("move-aside-1", "move-aside", "", (), path="/etc", aside="/etc.aside"),
        Action("stop-unit-x", "stop-unit", "", (), unit="sshd.service"),
    ):
        result = perform.perform(asked(invented))
        assert result.refusal is not None
        assert result.refusal.code == "refused"
        assert "leftovers says block now" in result.refusal.happened
        assert result.done == ()
    assert not gone(innocent)
    assert not gone(pid)


def test_an_action_whose_time_is_over_is_refused_with_what_is_so_now(start: Start) -> None:
    pid = leftover(start)
    (action,) = offered().actions
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))
    result = perform.perform(asked(action))
    assert result.refusal is not None
    assert result.refusal.title == "That is not offered any more"
    assert "leftovers says pass now: no process of an earlier run" in result.refusal.happened


def test_a_check_that_does_not_exist_is_refused() -> None:
    action = Action("x", "terminate", "", ())
    result = perform.perform(asked(action, "\x1b[2Jnone"))
    assert result.refusal is not None
    assert result.refusal.happened.isprintable()


def run_command(request: bytes) -> tuple[int, Any]:
    stdout = io.BytesIO()
    return perform.main(io.BytesIO(request), stdout), json.loads(stdout.getvalue())


def test_the_command_answers_what_it_cannot_read() -> None:
    for request in (b"", b"{}", b"\xff", b"[" * 100_000):
        status, answer = run_command(request)
        assert status == 2
        assert answer["refusal"]["code"] == "usage"


def test_the_command_refuses_a_profile_that_no_system_call_takes() -> None:
    out = io.BytesIO()
    action = Action("x", "terminate", "t", ())
    request = perform.Request(profile(data_path="/\0"), "leftovers", action)
    assert perform.main(io.BytesIO(dumps(request).encode()), out) == 2
    assert "profile.data.path holds a NUL" in json.loads(out.getvalue())["refusal"]["happened"]


def test_the_agents_command_line_takes_an_action(start: Start) -> None:
    pid = leftover(start)
    (action,) = offered().actions
    root = Path(perform.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-E", "-s", str(root), "act"],
        input=dumps(asked(action)).encode(),
        capture_output=True,
        cwd="/",
        timeout=60,
    )
    assert done.stderr == b""
    assert done.returncode == 0
    assert from_json(perform.Result, json.loads(done.stdout)).helped
    assert gone(pid)
