"""Leftovers: verdicts from facts, and real processes whose parents are gone."""

from __future__ import annotations

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
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.running import leftovers
from eagle3_agent.preflight.running.leftovers_facts import PROBE, Leftover, LeftoverFacts
from eagle3_agent.protocol.events import Spawned
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile, until

OURS = Leftover(
    48213, 99, "run", "S", "root", "python -m eagle3_agent.worker", 1_700_000_000.0,
    "/home/u/runs/0003",
)  # fmt: skip
VLLM = replace(OURS, pid=500, kind="vllm", run="", command="VLLM::EngineCore")


def verdict(*found: Leftover, **more: int) -> Verdict:
    facts = known((PROBE, LeftoverFacts(found, **more)))
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
    assert found.todo == "End them: kill 48213 (after 5 s: kill -9)"


def test_a_worker_under_its_supervisor_is_a_run_and_no_leftover() -> None:
    found = verdict(replace(OURS, guarded=True))
    assert found.status == "pass"
    assert "running under a supervisor: 0003" in found.saw


def test_vllm_of_anyone_warns() -> None:
    found = verdict(VLLM)
    assert found.status == "warn"
    assert "VLLM::EngineCore" in found.saw


def test_a_run_that_goes_on_is_told_beside_a_stranger() -> None:
    found = verdict(VLLM, replace(OURS, guarded=True))
    assert found.status == "warn"
    assert "running under a supervisor: 0003" in found.saw
    assert found.todo == "If they are yours and not needed: kill 500"


def test_what_cannot_be_ended_is_told() -> None:
    found = verdict(replace(OURS, state="D"))
    assert "stuck in the kernel (D)" in found.saw
    assert "may need a reboot" in found.todo


def test_processes_that_cannot_be_read_are_told() -> None:
    assert "12 processes of other users not readable" in verdict(hidden=12).saw


def test_many_are_counted() -> None:
    found = verdict(*[replace(OURS, pid=i) for i in range(64)], more=100)
    assert "and 156 more" in found.saw
    assert len(found.todo) < 400


def test_hostile_commands_come_out_printable() -> None:
    found = verdict(replace(OURS, command="\x1b[2J\n" * 1000))
    assert "\x1b" not in found.saw
    assert len(found.saw) < 400


def test_a_table_that_hangs_warns() -> None:
    silent = Facts(silent={"leftovers": "did not answer within 8 s"})
    assert leftovers.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ real processes

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process and says its pid; ``orphan`` lets its parent die at once."""
    begun: list[processes.Identity] = []

    def begin(argv: list[str], *, orphan: bool = False, **options: Any) -> int:
        if orphan:
            note = tmp_path / "pid"
            note.unlink(missing_ok=True)
            code = (
                "import subprocess, sys; p = subprocess.Popen(sys.argv[2:]); "
                "open(sys.argv[1] + '.new', 'w').write(str(p.pid)); "
                "import os; os.rename(sys.argv[1] + '.new', sys.argv[1]); os._exit(0)"
            )
            subprocess.run([sys.executable, "-c", code, str(note), *argv], check=True, **options)
            pid = int(note.read_text())
        else:
            pid = subprocess.Popen(argv, **options).pid
        who = processes.identity(pid)
        assert who is not None
        begun.append(who)
        return pid

    yield begin
    for who in begun:
        processes.send(who, signal.SIGKILL)


def look() -> tuple[LeftoverFacts, Verdict]:
    facts = gather(PROBE, profile())
    return facts.get(PROBE), leftovers.CHECK.decide(facts, profile())


def marked(folder: str | Path) -> dict[str, str]:
    return {**os.environ, processes.RUN_VARIABLE: str(folder)}


def found(pid: int) -> Leftover | None:
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
    assert verdict_.status == ("warn" if guard_lives else "block")
    assert (f"pid {inside} " in verdict_.saw) is not guard_lives
    assert (f" {inside} " in f" {verdict_.todo} ") is not guard_lives


def test_a_pid_that_was_given_to_another_process_is_left_alone(start: Start) -> None:
    folder = runs.create(profile(), "transformers", attempt=1)
    pid = start(["sleep", "600"], env={})
    folder.append(Spawned(time.time() - 3600, 1, pid, ("sleep",)))
    folder.write_guardian(runs.Guardian(2**22, 1, processes.boot_id(), os.uname().nodename))
    folder.write_exit(runs.Exit("failed", time.time()))
    assert found(pid) is None


def test_vllm_is_found_by_its_title_and_by_its_library(start: Start, tmp_path: Path) -> None:
    titled = start(["VLLM::Worker_TP3", "600"], executable="/bin/sleep")
    library = tmp_path / "vllm" / "_C.abi3.so"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    ready = tmp_path / "ready"
    code = (
        "import mmap, pathlib, signal, sys; f = open(sys.argv[1], 'rb'); "
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
        "pathlib.Path(sys.argv[2]).touch(); signal.pause()"
    )
    mapped = start([sys.executable, "-c", code, str(library), str(ready)])
    until(ready.exists)
    seen, verdict_ = look()
    kinds = {p.pid: p.kind for p in seen.found}
    assert kinds.get(titled) == "vllm"
    assert kinds.get(mapped) == "vllm"
    assert verdict_.status == "warn"


def test_the_dead_and_the_asking_are_no_leftovers(start: Start) -> None:
    folder = paths.runs_dir() / "0003"
    zombie = subprocess.Popen(["true"], env=marked(folder))
    until(lambda: (p := processes.read(zombie.pid)) is not None and p.state == "Z")
    assert found(zombie.pid) is None
    zombie.wait()
    assert found(os.getpid()) is None
