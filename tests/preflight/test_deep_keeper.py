"""An exercise's session: bounded, one at a time, gone with all it made, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.deep import segments
from support.preflight import gone, until
from support.vllm_env import AGENT, ROOT

#: An exercise of a test: what it does stands in EXERCISE, with ``keeper`` at hand.
_CHILD = """
import os, sys, time, types
from eagle3_agent.preflight.deep import keeper as kept
from eagle3_agent.preflight.deep.keeper import Command
from eagle3_agent.protocol import dumps

def shell(name, code, timeout=60.0):
    return Command(name, ["/bin/sh", "-c", code], os.environ, timeout)

def perform(keeper, ask):
    home = os.environ["NOTES"]
    open(f"{home}/scratch", "w").write(str(keeper.scratch))
    scope = {**globals(), "keeper": keeper, "home": home}
    exec(os.environ["EXERCISE"], scope)
    return scope.get("found")

kept._TURN = chr(0) + "eagle3-test-" + os.environ["TURN"]  # not the turn of real ones
made = types.ModuleType("eagle3_agent.preflight.deep.of_a_test")
made.perform = perform
sys.modules[made.__name__] = made
kept.child("of_a_test")
"""

_ASK = {
    "profile": {
        "name": "t",
        "host": {"python": sys.executable},
        "model": {"path": "/m"},
        "capture": {"layers": [1]},
        "data": {"path": "/d"},
        "output": {"dir": "/o"},
    }
}


@contextmanager
def keeping(notes: Path, exercise: str) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper at work, its stdin held open."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(AGENT), str(ROOT / "tests")]),
            "EXERCISE": textwrap.dedent(exercise),
            "NOTES": str(notes),
            "TURN": str(os.getpid()),
        },
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(_ASK).encode() + b"\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(30)


def kept(notes: Path, exercise: str) -> dict[str, Any]:
    """What a keeper says at the end of its exercise."""
    with keeping(notes, exercise) as process:
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.read())
        return found


def noted(notes: Path, name: str) -> int:
    path = notes / name
    until(lambda: path.exists() and path.read_text().strip() != "", 20)
    return int(path.read_text())


def test_commands_run_side_by_side_and_tell_how_they_ended(tmp_path: Path) -> None:
    answer = kept(
        tmp_path,
        """
        a, b, c = keeper.run([
            shell("a", "cat; echo one; echo; echo two >&2; exit 3"),
            shell("b", "sleep 600", timeout=0.5),
            shell("c", "kill -9 $$"),
        ])
        found = [[e.name, e.status, e.words] for e in (a, b, c)]
        """,
    )
    assert answer == {
        "facts": [["a", 3, ["one", "two"]], ["b", None, []], ["c", -9, []]],
    }
    assert not Path((tmp_path / "scratch").read_text()).exists()


def test_what_a_command_leaves_is_ended_before_the_next(tmp_path: Path) -> None:
    answer = kept(
        tmp_path,
        """
        keeper.run([shell("a", f"setsid sleep 600 & echo $! > {home}/left; exit 0")])
        found = os.path.exists(f"/proc/{open(f'{home}/left').read().strip()}/cwd")
        """,
    )
    assert answer == {"facts": False} or gone(noted(tmp_path, "left"))
    assert gone(noted(tmp_path, "left"))


def test_the_rest_gets_little_time_once_one_has_failed(tmp_path: Path) -> None:
    began = time.monotonic()
    answer = kept(
        tmp_path,
        """
        ended = keeper.run([shell("a", "exit 1"), shell("b", "sleep 600")], after_failure=0.3)
        found = [e.status for e in ended]
        """,
    )
    assert answer == {"facts": [1, None]}
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("how", ["probe gone", "terminated"])
def test_all_goes_when_nobody_listens_any_more(tmp_path: Path, how: str) -> None:
    """A process that left its session, a file and a mapped segment of shared memory."""
    segment = Path(f"/dev/shm/eagle3-test-{os.getpid()}-{how.replace(' ', '-')}")
    program = (
        "import mmap, os, sys, time; f = open(sys.argv[1], 'w+b'); f.truncate(4096); "
        "m = mmap.mmap(f.fileno(), 4096); open(sys.argv[2], 'w').write(str(os.getpid())); "
        "time.sleep(600)"
    )
    exercise = f"""
    mapped = Command(
        "m", [{sys.executable!r}, "-c", {program!r}, {str(segment)!r}, f"{{home}}/pid"],
        os.environ, 60.0,
    )
    keeper.run([mapped, shell("left", f"setsid sleep 600 & echo $! > {{home}}/left; wait")])
    """
    with keeping(tmp_path, exercise) as process:
        pids = [noted(tmp_path, "pid"), noted(tmp_path, "left")]
        scratch = Path((tmp_path / "scratch").read_text())
        assert scratch.exists()
        assert segment.exists()
        if how == "terminated":
            process.send_signal(signal.SIGTERM)
        else:
            assert process.stdin is not None
            process.stdin.close()
        process.wait(30)
    assert all(gone(pid) for pid in pids)
    assert not scratch.exists()
    assert not segment.exists()


def test_a_killed_probe_takes_its_exercise_along(tmp_path: Path) -> None:
    """By the runner's own way: the probe's process group is killed when its time is over."""
    code = textwrap.dedent(
        f"""
        import os, subprocess, sys, types
        from eagle3_agent.preflight.check import Ask
        from eagle3_agent.preflight.deep import exercise
        from eagle3_agent.protocol import from_json
        exercise._CHILD = {_CHILD!r}
        os.environ["EXERCISE"] = (
            "keeper.run([shell('a', f'echo $$ > {{home}}/pid; exec sleep 600')])")
        os.environ.update(NOTES={str(tmp_path)!r}, TURN="of-a-test")
        exercise._ISOLATED = ()
        exercise.collect("of_a_test", dict, from_json(Ask, {_ASK!r}))
        """
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(AGENT), str(ROOT / "tests")])}
    probe = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
    try:
        pid = noted(tmp_path, "pid")
        scratch = Path((tmp_path / "scratch").read_text())
    finally:
        os.killpg(probe.pid, signal.SIGKILL)
        probe.wait()
    until(lambda: gone(pid) and not scratch.exists(), 20)


def test_exercises_take_turns(tmp_path: Path) -> None:
    waits = """
    with keeper.turn(0.5):
        pass
    found = True
    """
    holds = """
    with keeper.turn(60):
        open(f"{home}/held", "w").write("1")
        keeper.run([shell("a", "sleep 600")])
    """
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    with keeping(first, holds) as holder:
        noted(first, "held")
        assert "another exercise" in kept(second, waits)["failed"]
        holder.send_signal(signal.SIGTERM)
        holder.wait(30)
    assert kept(second, waits.replace("0.5", "60")) == {"facts": True}


def test_a_run_that_begins_ends_the_exercise(tmp_path: Path) -> None:
    answer = kept(
        tmp_path,
        """
        keeper.disturbed = lambda: "run 0007 began meanwhile"
        keeper.run([shell("a", f"echo $$ > {home}/pid; exec sleep 600")])
        """,
    )
    assert answer == {"failed": "it was stopped: run 0007 began meanwhile"}
    assert gone(noted(tmp_path, "pid"))


def test_temporary_files_of_commands_go_with_the_exercise(tmp_path: Path) -> None:
    kept(tmp_path, """keeper.run([shell("a", "mktemp > $NOTES/made")])""")
    made = Path((tmp_path / "made").read_text().strip())
    assert made.parent == Path((tmp_path / "scratch").read_text())
    assert not made.exists()


def test_a_broken_exercise_says_so(tmp_path: Path) -> None:
    assert kept(tmp_path, "1 / 0") == {"failed": "ZeroDivisionError: division by zero"}


def test_segments_that_somebody_maps_stay(tmp_path: Path) -> None:
    import mmap

    mine = Path(f"/dev/shm/eagle3-test-mine-{os.getpid()}")
    free = Path(f"/dev/shm/eagle3-test-free-{os.getpid()}")
    try:
        free.write_bytes(b"x")
        with mine.open("w+b") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 4096):
                assert str(mine) in segments.mapped(os.getpid())
                segments.remove([str(mine), str(free), "/dev/shm/eagle3-test-not-there"])
        assert mine.exists()
        assert not free.exists()
    finally:
        mine.unlink(missing_ok=True)
        free.unlink(missing_ok=True)
