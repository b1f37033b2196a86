"""Leftovers: verdicts from facts, and real processes whose parents are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent import paths, processes, runs
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.running import leftovers
from eagle3_agent.preflight.running.process_facts import PROBE, ProcessFacts, Seen
from eagle3_agent.protocol.events import Spawned
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile, until
from support.real_processes import Start, starting

OURS = Seen(
    48213, 99, "run", "S", "root", "python -m eagle3_agent.worker", 1_700_000_000.0,
    "/home/u/runs/0003",
)  # fmt: skip
VLLM = replace(OURS, pid=500, kind="vllm", run="", command="VLLM::EngineCore")


def verdict(*found: Seen, more: int = 0, hidden: int = 0) -> Verdict:
    facts = known((PROBE, ProcessFacts(found, more, hidden)))
    return leftovers.CHECK.decide(facts, profile())


def test_what_a_run_kept_elsewhere_left_warns_and_is_named_by_its_folder() -> None:
    found = verdict(replace(OURS, elsewhere=True))
    assert found.status == "warn"
    assert "pid 48213" in found.saw
    assert "of run /home/u/runs/0003" in found.saw
    assert "kill 48213" in found.todo
    assert verdict(replace(OURS, elsewhere=True), OURS).status == "block"


def test_nothing_left_passes() -> None:
    assert verdict().status == "pass"


def test_a_worker_without_its_supervisor_blocks_and_is_named() -> None:
    found = verdict(OURS, VLLM)
    assert found.status == "block"
    assert "pid 48213 root python -m eagle3_agent.worker since 2023-11-1" in found.saw
    assert "of run 0003" in found.saw
    assert "500" not in found.saw
    assert found.todo == "End them: kill 48213 (after 10 s: kill -9)"


def test_a_worker_under_its_supervisor_is_a_run_and_no_leftover() -> None:
    found = verdict(replace(OURS, guarded=True))
    assert found.status == "pass"
    assert "running under a supervisor: 0003" in found.saw
    elsewhere = [
        replace(OURS, guarded=True, elsewhere=True, run=f"/{'home/' * 30}runs/000{i}")
        for i in range(3)
    ]
    found = verdict(*elsewhere)
    assert "home/runs/0000, …" in found.saw
    assert found.saw.endswith("home/runs/0001 and 1 more")
    assert len(found.saw) < 200


def test_what_a_run_left_can_be_ended_run_by_run() -> None:
    child = replace(OURS, pid=48300, start_time=120, root=48213)
    of_other = replace(OURS, pid=700, run="/home/u/runs/0002")
    found = verdict(OURS, child, of_other, replace(OURS, pid=9, guarded=True), VLLM)
    first, second = found.actions
    assert first.id == "terminate-48213-and-1"
    assert [(p.pid, p.start_time) for p in first.processes] == [(48213, 99), (48300, 120)]
    assert [p.pid for p in second.processes] == [700]
    assert "pid 48300 root: python -m eagle3_agent.worker" in first.effect


def test_whom_the_agent_may_not_end_is_not_offered_and_why_is_said() -> None:
    found = verdict(replace(OURS, spared="it is of user eve, and the agent runs as user 1000"))
    assert found.status == "block"
    assert found.actions == ()
    assert "Not by this agent: 48213: it is of user eve" in found.todo


def test_what_waits_in_the_kernel_is_not_offered_since_no_signal_ends_it() -> None:
    assert verdict(replace(OURS, state="D")).actions == ()


def test_vllm_of_others_is_no_leftover() -> None:
    assert verdict(VLLM).status == "pass"


def test_what_was_not_looked_at_is_no_pass() -> None:
    assert verdict(replace(OURS, guarded=True), more=3).status == "warn"


def test_what_cannot_be_ended_is_told() -> None:
    found = verdict(replace(OURS, state="D"))
    assert "stuck in the kernel (D)" in found.saw
    assert "may need a reboot" in found.todo


def test_processes_that_cannot_be_read_are_told() -> None:
    assert verdict(hidden=12).saw == (
        "no process of an earlier run is left (12 processes of other users cannot be looked into)"
    )


def test_many_are_counted() -> None:
    found = verdict(*[replace(OURS, pid=i) for i in range(64)], more=100)
    assert "and 56 more" in found.saw
    assert len(found.todo) < 400


def test_hostile_commands_come_out_printable() -> None:
    found = verdict(replace(OURS, command="\x1b[2J\n" * 1000))
    assert "\x1b" not in found.saw
    assert len(found.saw) < 400


def test_a_table_that_hangs_warns() -> None:
    silent = Facts(silent={"processes": "did not answer within 8 s"})
    assert leftovers.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ real processes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


def look() -> tuple[ProcessFacts, Verdict]:
    facts = gather(PROBE, profile())
    return facts.get(PROBE), leftovers.CHECK.decide(facts, profile())


def marked(folder: str | Path) -> dict[str, str]:
    return {**os.environ, processes.RUN_VARIABLE: str(folder)}


def found(pid: int) -> Seen | None:
    return next((p for p in look()[0].found if p.pid == pid), None)


def test_an_orphan_of_a_run_is_found_under_any_name(start: Start, tmp_path: Path) -> None:
    innocent = tmp_path / "nginx"
    innocent.symlink_to("/bin/sleep")
    folder = paths.runs_dir() / "0003"
    pid = start([str(innocent), "600"], orphan=True, env=marked(folder))
    seen, verdict_ = look()
    one = next(p for p in seen.found if p.pid == pid)
    assert (one.kind, one.run, one.guarded) == ("run", str(folder), False)
    assert one.start_time == processes.read(pid).identity.start_time  # type: ignore[union-attr]
    assert verdict_.status == "block"
    assert f"pid {pid} " in verdict_.saw
    assert "of run 0003" in verdict_.saw


def test_a_worker_of_a_run_that_goes_on_is_guarded(start: Start) -> None:
    folder = runs.create(profile(), "transformers", attempt=1)
    supervisor = start(["sleep", "600"])
    who = processes.identity(supervisor)
    assert who is not None
    host = os.uname().nodename
    guardian = runs.Guardian(who.pid, who.start_time, processes.boot_id(), host)
    folder.write_guardian(guardian)
    pid = start(["sleep", "600"], env=marked(folder.path))
    one = found(pid)
    assert one is not None
    assert one.guarded
    (folder.path / "supervisor.json").unlink()
    folder.write_guardian(replace(guardian, start_time=guardian.start_time - 1))
    one = found(pid)
    assert one is not None
    assert not one.guarded


def test_a_worker_that_wiped_its_environment_is_known_by_its_runs_events(start: Start) -> None:
    folder = runs.create(profile(), "transformers", attempt=1)
    pid = start(["sleep", "600"], env={})
    folder.append(Spawned(time.time(), 1, pid, ("sleep",)))
    boot = processes.boot_id()
    folder.write_guardian(runs.Guardian(2**22, 1, boot, os.uname().nodename))
    folder.write_exit(runs.Exit("failed", time.time()))
    one = found(pid)
    assert one is not None
    assert (one.run, one.guarded) == (str(folder.path), False)


@pytest.mark.parametrize("guard_lives", [True, False])
def test_what_a_worker_started_is_its_runs_though_it_wiped_its_environment(
    start: Start, tmp_path: Path, guard_lives: bool
) -> None:
    folder = runs.create(profile(), "speculators", attempt=1)
    guard = processes.identity(start(["sleep", "600"]))
    assert guard is not None
    born = guard.start_time if guard_lives else guard.start_time - 1
    host = os.uname().nodename
    folder.write_guardian(runs.Guardian(guard.pid, born, processes.boot_id(), host))
    code = (
        "import subprocess, sys\n"
        "argv = ['VLLM::Worker_TP0', '600']\n"
        "kids = [subprocess.Popen(argv, executable='/bin/sleep', cwd=cwd, env={})\n"
        "        for cwd in sys.argv[1:]]\n"
        "print(*(kid.pid for kid in kids), flush=True)\n"
        "sys.stdin.read()\n"
        "[kid.kill() for kid in kids]\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder.path,
        start_new_session=True,
        env={},
    ) as worker:
        assert worker.stdout is not None
        inside, elsewhere = map(int, worker.stdout.readline().split())
        folder.append(Spawned(time.time(), guard.pid, worker.pid, ("python",)))
        seen, verdict_ = look()
        worker.communicate()
    told = {p.pid: (p.kind, p.run, p.guarded) for p in seen.found}
    assert told[inside] == ("run", str(folder.path), guard_lives)
    assert told[elsewhere] == ("vllm", "", False)
    assert verdict_.status == ("pass" if guard_lives else "block")
    assert (f"pid {inside} " in verdict_.saw) is not guard_lives
    assert (f" {inside} " in f" {verdict_.todo} ") is not guard_lives


def test_a_pid_that_was_given_to_another_process_is_left_alone(start: Start) -> None:
    folder = runs.create(profile(), "transformers", attempt=1)
    pid = start(["sleep", "600"], env={})
    folder.append(Spawned(time.time() - 3600, 1, pid, ("sleep",)))
    folder.write_guardian(runs.Guardian(2**22, 1, processes.boot_id(), os.uname().nodename))
    folder.write_exit(runs.Exit("failed", time.time()))
    assert found(pid) is None


def test_the_dead_and_the_asking_are_no_leftovers(start: Start) -> None:
    folder = paths.runs_dir() / "0003"
    zombie = subprocess.Popen(["true"], env=marked(folder))
    until(lambda: (p := processes.read(zombie.pid)) is not None and p.state == "Z")
    assert found(zombie.pid) is None
    zombie.wait()
    assert found(os.getpid()) is None


def test_run_folders_that_cannot_be_read_cost_no_check_and_are_told(start: Start) -> None:
    """Another user's home, say: NVML, /proc and the marks still tell."""
    paths.runs_dir().parent.mkdir(parents=True, exist_ok=True)
    paths.runs_dir().write_text("no folder")
    left = start(["sleep", "600"], env={**os.environ, "EAGLE3_RUN": str(paths.runs_dir() / "0003")})
    line = [sys.executable, "-c", "import time; time.sleep(600)", "eagle3_agent", "supervise"]
    guard = start(line, env={**os.environ, "EAGLE3_RUN": str(paths.runs_dir() / "0004")})
    seen = gather(PROBE, profile()).get(PROBE)
    assert seen.blind == "Not a directory"
    ours = {p.pid: p for p in seen.found if p.pid in (left, guard)}
    assert not ours[left].guarded
    assert ours[guard].guarded  # as far as anyone can tell, it is a supervisor
    assert ours[guard].spared
    found = leftovers.CHECK.decide(known((PROBE, ProcessFacts(blind=seen.blind))), profile())
    assert (found.status, "Not a directory" in found.saw) == ("warn", True)
