"""How a run ends, decided by its supervisor over real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from eagle3_agent import processes
from eagle3_agent.protocol.events import Aborting, Ended, Failure, Load, Note, Spawned, Stage
from eagle3_agent.protocol.messages import Abort, Detail, Done, GetRun
from eagle3_agent.protocol.values import RunState
from support.daemon import Home, eventually

#: Seconds between the samples that a supervisor records, as its child's command line has it.
_RECORDED_EVERY = "2.0"


def test_completed(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("completed"))
    summary = wire.ended(run, "completed")
    assert (summary.samples.done, summary.samples.total, summary.samples.skipped) == (3, 3, 0)
    assert summary.tokens == 300
    assert summary.tokens_per_second is not None
    assert summary.engine == "transformers"
    assert summary.attempt == 1
    assert summary.started is not None
    assert summary.ended is not None
    assert summary.started <= summary.ended

    events = [event for _, event in home.run(run).read_events()]
    assert [e.status for e in events if isinstance(e, Stage) and e.name == "preflight"] == [
        "start",
        "done",
    ]
    assert [(e.done, e.total) for e in events if isinstance(e, Load)] == [(0, 2), (1, 2), (2, 2)]
    spawned = next(e for e in events if isinstance(e, Spawned))
    assert processes.identity(spawned.worker) is None
    last = events[-1]
    assert isinstance(last, Ended)
    assert (last.state, last.code, last.signal, last.survivors) == ("completed", 0, None, ())
    end = home.run(run).exit()
    assert end is not None
    assert end.state == "completed"


@pytest.mark.parametrize(
    ("scenario", "state", "words"),
    [
        ("silent", "failed", "never said that it was done"),
        ("segfault", "failed", "killed by SIGSEGV"),
        ("killed", "failed", "killed by SIGKILL (out of memory?)"),
        ("crashed", "failed", "RuntimeError: CUDA driver version is insufficient"),
    ],
)
def test_a_death_without_a_word_is_explained(
    home: Home, scenario: str, state: RunState, words: str
) -> None:
    wire = home.attach()
    summary = wire.ended(wire.start(home.profile(scenario)), state)
    assert summary.error is not None
    assert summary.error.type == "WorkerDied"
    assert words in summary.error.message


def test_incomplete_when_samples_were_skipped(home: Home) -> None:
    wire = home.attach()
    summary = wire.ended(wire.start(home.profile("incomplete")), "incomplete")
    assert (summary.samples.done, summary.samples.skipped) == (2, 1)


def test_a_failure_keeps_the_workers_own_words(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("failed"))
    error = wire.ended(run, "failed").error
    assert error is not None
    assert (error.type, error.message, error.rank) == ("KeyError", "", 3)
    assert error.where is not None
    assert error.where.line == 12
    failures = [e for _, e in home.run(run).read_events() if isinstance(e, Failure)]
    assert len(failures) == 1


def test_an_interpreter_that_does_not_exist(home: Home) -> None:
    home.interpreter.unlink()
    wire = home.attach()
    summary = wire.ended(wire.start(home.profile()), "failed")
    assert summary.error is not None
    assert str(home.interpreter) in summary.error.message
    assert "host.python" in summary.error.message


def test_an_abort_leaves_no_descendant(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("family"))
    folder = home.run(run).path
    names = ("stays-1", "stays-2")
    eventually(lambda: all((folder / name).exists() for name in names))
    pids = [int((folder / name).read_text()) for name in names]
    who = [processes.identity(pid) for pid in pids]
    done = wire.expect(Done, Abort(0, run))
    assert "all its processes are gone" in done.text
    assert not any(w and processes.alive(w) for w in who)
    assert processes.marked(str(folder)) == []
    assert wire.summary(run).state == "aborted"
    steps = [e for _, e in home.run(run).read_events() if isinstance(e, Aborting)]
    assert [s.signal for s in steps] == ["SIGTERM", "SIGINT", "SIGKILL"]
    assert set(pids) < set(steps[0].pids)
    again = wire.refused(Abort(0, run))
    assert again.problem.code == "refused"


def test_what_outlives_a_worker_is_ended_and_told(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("leaver"))
    wire.ended(run, "completed")
    pid = int((home.run(run).path / "stays-1").read_text())
    assert not Path(f"/proc/{pid}").exists()
    notes = [e.text for _, e in home.run(run).read_events() if isinstance(e, Note)]
    assert any("outlived the worker" in text and str(pid) in text for text in notes)


def test_a_run_survives_the_agent_and_is_adopted(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    eventually(lambda: wire.summary(run).samples.done == 1)
    guardian = home.run(run).guardian()
    assert guardian is not None
    home.kill_daemon()
    wire.process.wait(10)

    os.kill(guardian.pid, signal.SIGHUP)
    again = home.attach()
    assert again.summary(run).state == "running"
    (home.run(run).path / "go").touch()
    again.ended(run, "completed")
    assert again.whole(run, "output") == home.run(run).output.read_bytes()
    assert again.whole(run, "events") == home.run(run).events.read_bytes()


def _recorders(home: Home) -> list[int]:
    """Telemetry processes of this home's agent and supervisors."""
    needle = f"{home.root}\0sample\0".encode()
    return [
        pid
        for pid in processes.table()
        if needle in _command_line(pid) and f"\0{_RECORDED_EVERY}\0".encode() in _command_line(pid)
    ]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_run_whose_supervisor_was_killed_is_lost(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    eventually(lambda: wire.summary(run).samples.done == 1)
    guardian = home.run(run).guardian()
    assert guardian is not None
    os.kill(guardian.pid, signal.SIGKILL)
    wire.ended(run, "lost")
    folder = str(home.run(run).path)
    assert processes.marked(folder), "its worker goes on without a guard"
    eventually(lambda: not _recorders(home))
    assert b"Spawned" in wire.whole(run, "events")
    assert "1 processes" in wire.expect(Done, Abort(0, run)).text
    assert processes.marked(folder) == []


def test_a_lost_runs_worker_is_found_below_a_linked_home(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "home").symlink_to(tmp_path / "disk")
    home = Home(tmp_path / "parts")
    try:
        wire = home.attach()
        run = wire.start(home.profile("hold"))
        eventually(lambda: wire.summary(run).samples.done == 1)
        guardian = home.run(run).guardian()
        assert guardian is not None
        os.kill(guardian.pid, signal.SIGKILL)
        wire.ended(run, "lost")
        assert "1 processes" in wire.expect(Done, Abort(0, run)).text
        assert processes.marked(str(home.run(run).path.resolve())) == []
    finally:
        home.close()


def test_a_run_of_another_boot_is_lost(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    eventually(lambda: wire.summary(run).samples.done == 1)
    home.kill_daemon()
    path = home.run(run).path / "supervisor.json"
    there = path.read_text()
    path.write_text(there.replace(processes.boot_id(), "another-boot"))
    assert home.attach().summary(run).state == "lost"
    path.write_text(there)


def test_detail_of_a_run(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("completed"))
    wire.ended(run, "completed")
    detail = wire.expect(Detail, GetRun(0, run)).detail
    assert detail.environment == {"python": "3.11.7"}
    assert detail.resolved == home.profile("completed")
    assert detail.preflight is not None
    assert detail.preflight.verdicts[0].check == "disk"
    assert [s.name for s in detail.stages] == ["preflight", "load", "extract", "done"]
