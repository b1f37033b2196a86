"""Who is who in /proc, over real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3_agent import ending, processes
from eagle3_agent.processes import Identity
from support.daemon import eventually


def _sleeper(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
    code = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **env},
    )
    assert child.stdout is not None
    child.stdout.read(1)
    return child


def test_a_process_is_its_pid_and_start_time() -> None:
    child = _sleeper()
    who = processes.identity(child.pid)
    assert who is not None
    assert processes.alive(who)
    stranger = Identity(who.pid, who.start_time + 1)
    assert not processes.alive(stranger)
    assert not processes.send(stranger, signal.SIGKILL)
    assert processes.alive(who)
    assert processes.send(who, signal.SIGKILL)
    eventually(lambda: not processes.alive(who))  # a zombie does not live
    assert processes.identity(child.pid) == who
    child.communicate()
    assert processes.identity(child.pid) is None
    assert not processes.send(who, signal.SIGTERM)


def test_what_a_process_calls_itself_is_made_printable() -> None:
    child = _sleeper("a\x1b]0;title\x07b\nc\u202ed", "x" * 5000)
    try:
        text = processes.command(child.pid)
        assert text.isprintable()
        assert len(text) <= 300
        assert processes.user(child.pid)
        began = processes.started(child.pid)
        assert began is not None
        assert abs(began - time.time()) < 30
    finally:
        child.communicate()
    assert processes.command(child.pid) == ""
    assert processes.user(child.pid) == ""
    assert processes.started(child.pid) is None


def test_a_name_with_parentheses_does_not_confuse() -> None:
    code = (
        "import sys\nopen('/proc/self/comm', 'w').write(') R 1 (x)')\n"
        "print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        process = processes.read(child.pid)
        assert process is not None
        assert process.parent == os.getpid()
        assert process.name == ") R 1 (x)"
        assert child.pid in {p.pid for p in processes.descendants(os.getpid())}
    finally:
        child.communicate()


def test_the_mark_of_a_run_finds_its_processes() -> None:
    child = _sleeper(**{processes.RUN_VARIABLE: "/runs/0001"})
    try:
        assert [p.pid for p in processes.marked("/runs/0001")] == [child.pid]
        assert processes.marked("/runs/000") == []
    finally:
        child.communicate()


def test_a_worker_that_wrote_over_its_environment_is_found_by_session_and_folder(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "0007", tmp_path / "0008"
    folder.mkdir()
    other.mkdir()
    code = (
        "import subprocess, sys\n"
        "told = [('inside', sys.argv[1], False), ('elsewhere', sys.argv[2], False),\n"
        "        ('own session', sys.argv[1], True)]\n"
        "kids = [subprocess.Popen(['sleep', '600'], cwd=cwd, env={}, start_new_session=new)\n"
        "        for _, cwd, new in told]\n"
        "print(*(kid.pid for kid in kids), flush=True)\n"
        "sys.stdin.read()\n"
        "[kid.kill() for kid in kids]\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(other)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={},
        start_new_session=True,
    )
    try:
        assert worker.stdout is not None
        inside = int(worker.stdout.readline().split()[0])
        link = tmp_path / "link"
        link.symlink_to(folder)
        for name in (str(folder), str(link)):
            assert processes.marked(name) == []
            assert {p.pid for p in processes.marked(name, worker.pid)} == {worker.pid, inside}
    finally:
        worker.communicate()


def test_ending_goes_on_until_nobody_is_left() -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.fork())\n"  # answers with another of itself
        "print(flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, processes.RUN_VARIABLE: "/runs/0002"},
    )
    assert child.stdout is not None
    child.stdout.readline()
    told: list[tuple[str, int]] = []
    steps = (ending.Step(signal.SIGTERM, 0.5), ending.Step(signal.SIGKILL, 5.0))
    left = ending.end(
        lambda: processes.marked("/runs/0002"),
        lambda number, who: told.append((number.name, len(who))),
        steps,
    )
    child.wait()
    child.stdout.close()
    assert left == []
    assert processes.marked("/runs/0002") == []
    assert told[0] == ("SIGTERM", 1)
    assert told[-1][0] == "SIGKILL"


@pytest.mark.parametrize(
    ("cgroup", "words"),
    [
        ("0::/user.slice/user-0.slice/session-3.scope\n", "unit session-3.scope"),
        ("0::/system.slice/vllm.service\n", "unit vllm.service"),
        ("0::/init.scope\n", ""),
        ("0::/\n", ""),
        ("", ""),
        (f"0::/system.slice/docker-{'ab' * 32}.scope\n", "container abababababab"),
        (f"12:pids:/docker/{'0f' * 32}\n0::/\n", "container 0f0f0f0f0f0f"),
        (
            f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'12' * 32}.scope\n",
            "container 121212121212",
        ),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "slurm job 4711"),
    ],
)
def test_owner_from_the_cgroup(cgroup: str, words: str) -> None:
    assert processes.owner_of(cgroup) == words
