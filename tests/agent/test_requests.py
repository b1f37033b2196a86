"""What the daemon does with each message, over real attach processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol import MAX_LINE, decode_message, encode
from eagle3_agent.protocol.messages import (
    Abort,
    Checked,
    Clear,
    Cleared,
    Compat,
    Detail,
    Done,
    GetCompat,
    GetRun,
    Hello,
    ListRuns,
    Ping,
    Pong,
    Refused,
    Resume,
    RunChanged,
    RunPreflight,
    Runs,
    SampleHost,
    Start,
    Started,
    StopAgent,
    Subscribe,
    Telemetry,
    Unsubscribe,
    Verified,
    Verify,
    WatchHost,
)
from support.daemon import Home, Wire, eventually

# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"type":"Nonsense","id":3}\n',
        b'{"type":"GetRun","id":3}\n',
        b'{"type":"GetRun","id":3,"run":7}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_malformed_line_is_refused_and_the_connection_goes_on(home: Home, line: bytes) -> None:
    wire = home.attach()
    wire.send_line(line)
    reply = wire.next()
    assert isinstance(reply, Refused)
    assert reply.problem.code == "usage"
    assert reply.re == (3 if b'"id":3' in line else 0)
    assert isinstance(wire.ask(Ping(0)), Pong)


def test_an_over_long_line_closes_the_connection_with_a_reason(home: Home) -> None:
    wire, other = home.attach(), home.attach()
    with contextlib.suppress(BrokenPipeError):
        for _ in range(8):
            wire.send_line(b"x" * (MAX_LINE // 4))
    reply = wire.next()
    assert isinstance(reply, Refused)
    assert str(MAX_LINE) in reply.problem.happened
    assert wire.next() is None
    assert isinstance(other.ask(Ping(0)), Pong)


def test_nothing_is_answered_before_a_greeting(home: Home) -> None:
    wire = home.attach(hello=False)
    assert "Hello" in wire.refused(ListRuns(0)).problem.todo
    wire.hello()
    assert wire.expect(Runs, ListRuns(0)).runs == ()


def test_a_reply_is_not_a_request(home: Home) -> None:
    wire = home.attach()
    wire.send_line(encode(Pong(5)))
    reply = wire.next()
    assert isinstance(reply, Refused)


def test_a_run_that_does_not_exist(home: Home) -> None:
    wire = home.attach()
    for name in ("7", "0007", "last", "../../etc", "-1", "9" * 400):
        assert wire.refused(GetRun(0, name)).problem.code == "not-found"


# ---------------------------------------------------------------- start


def test_preflight_and_a_blocked_start(home: Home) -> None:
    wire = home.attach()
    profile = home.profile(TEST_PREFLIGHT="gpu-clean model")
    report = wire.expect(Checked, RunPreflight(0, profile)).report
    assert [v.check for v in report.blocking] == ["gpu-clean", "model"]
    refused = wire.refused(Start(0, profile))
    assert refused.problem.code == "blocked"
    assert refused.report is not None
    assert [v.check for v in refused.report.blocking] == ["gpu-clean", "model"]
    assert "--force gpu-clean --force model" in refused.problem.todo
    half = wire.refused(Start(0, profile, force=("model", "disk")))
    assert "gpu-clean" in half.problem.happened
    assert "model" not in half.problem.happened
    typo = wire.refused(Start(0, profile, force=("model", "gpu-claen"))).problem
    assert typo.code == "usage"
    assert "'gpu-claen'" in typo.title
    assert "disk, gpu-clean, model" in typo.happened
    assert wire.expect(Runs, ListRuns(0)).runs == ()
    run = wire.start(profile, force=("model", "gpu-clean", "disk"))
    detail = wire.expect(Detail, GetRun(0, run)).detail
    assert set(detail.forced) == {"model", "gpu-clean"}
    wire.ended(run, "completed")


@pytest.mark.parametrize(("what", "words"), [("crash", "ModuleNotFoundError"), ("garbage", "")])
def test_a_preflight_that_fails_itself(home: Home, what: str, words: str) -> None:
    wire = home.attach()
    problem = wire.refused(Start(0, home.profile(TEST_PREFLIGHT=what))).problem
    assert problem.code == "failed"
    assert words in problem.happened
    assert wire.expect(Runs, ListRuns(0)).runs == ()


def test_claims_and_the_queue(home: Home) -> None:
    wire = home.attach()
    first = wire.start(home.profile("hold", out="one"))
    busy = wire.refused(Start(0, home.profile(out="two"))).problem
    assert busy.code == "busy"
    assert first in busy.happened
    second = wire.expect(Started, Start(0, home.profile(out="two"), queue=True))
    third = wire.expect(Started, Start(0, home.profile("hold", out="three"), queue=True))
    assert second.queued
    assert third.queued
    assert wire.summary(second.run).state == "queued"
    (home.run(first).path / "go").touch()
    wire.ended(first, "completed")
    two = wire.ended(second.run, "completed")
    eventually(lambda: wire.summary(third.run).started is not None)
    three = wire.summary(third.run)
    assert three.state == "running"
    assert two.ended is not None
    assert three.started is not None
    assert two.ended <= three.started
    wire.expect(Done, Abort(0, third.run))


def test_a_queued_run_can_be_taken_out(home: Home) -> None:
    wire = home.attach()
    first = wire.start(home.profile("hold", out="one"))
    second = wire.start(home.profile(out="two"), queue=True)
    assert "queue" in wire.expect(Done, Abort(0, second)).text
    assert wire.summary(second).state == "aborted"
    assert b"Ended" in wire.whole(second, "events")
    wire.expect(Done, Abort(0, first))
    assert home.run(second).guardian() is None


def test_the_queue_outlives_the_agent(home: Home) -> None:
    wire = home.attach()
    first = wire.start(home.profile("hold", out="one"))
    second = wire.start(home.profile(out="two"), queue=True)
    home.kill_daemon()
    (home.run(first).path / "go").touch()
    again = home.attach()
    again.ended(first, "completed")
    again.ended(second, "completed")


def test_a_queued_run_is_checked_again_when_its_turn_comes(home: Home, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("gpu-clean")  # as it is while another run holds the memory
    wire = home.attach()
    first = wire.start(home.profile("hold", out="one"))
    profile = home.profile(out="two", TEST_PREFLIGHT=f"file:{blocked}")
    second = wire.start(profile, queue=True)
    blocked.write_text("model")
    (home.run(first).path / "go").touch()
    error = wire.ended(second, "failed").error
    assert error is not None
    assert error.type == "PreflightBlocked"
    assert "model is bad" in error.message
    detail = wire.expect(Detail, GetRun(0, second)).detail
    assert detail.preflight is not None
    assert [v.check for v in detail.preflight.blocking] == ["model"]


def test_resume_is_the_next_attempt(home: Home) -> None:
    wire = home.attach()
    first = wire.start(home.profile("hold"))
    assert wire.refused(Resume(0, first)).problem.code == "busy"
    (home.run(first).path / "go").touch()
    wire.ended(first, "completed")
    second = wire.expect(Started, Resume(0, first)).run
    (home.run(second).path / "go").touch()
    assert wire.ended(second, "completed").attempt == 2
    assert home.run(second).record().resumes == first
    elsewhere = wire.start(home.profile(out="elsewhere"))
    assert wire.ended(elsewhere, "completed").attempt == 3
    renamed = wire.start(replace(home.profile(out="other"), name="other"))
    assert wire.ended(renamed, "completed").attempt == 1


def test_read_only_clients_change_nothing(home: Home) -> None:
    writer = home.attach()
    run = writer.start(home.profile("hold"))
    reader = home.attach(read_only=True)
    for message in (
        Start(0, home.profile(out="x")),
        Resume(0, run),
        Abort(0, run),
        Clear(0, run, confirm=True),
        StopAgent(0),
    ):
        assert reader.refused(message).problem.code == "refused"
    reader.hello(read_only=False)
    assert reader.refused(Abort(0, run)).problem.code == "refused"
    assert reader.summary(run).state == "running"
    writer.expect(Done, Abort(0, run))


# ---------------------------------------------------------------- watching


def test_two_clients_see_one_run(home: Home) -> None:
    one, two = home.attach(), home.attach()
    one.expect(Runs, ListRuns(0, watch=True))
    two.expect(Runs, ListRuns(0, watch=True))
    run = one.start(home.profile("hold"))
    events = [two.send(Subscribe(0, run, "events")), one.send(Subscribe(0, run, "events"))]
    assert all(events)
    (home.run(run).path / "go").touch()

    def completed(wire: Wire) -> bool:
        wire.ask(Ping(0))
        seen = [m.summary for m in wire.pushes if isinstance(m, RunChanged)]
        return any(s.run == run and s.state == "completed" for s in seen)

    eventually(lambda: completed(one))
    eventually(lambda: completed(two))


def test_a_stream_is_the_files_bytes_from_any_offset(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("chatty"))
    eventually(lambda: wire.summary(run).samples.done == 1)
    early = wire.read_stream(run, "output")
    first = next(early)
    assert first.offset == 0
    assert not first.ended
    (home.run(run).path / "go").touch()
    data = first.raw() + b"".join(chunk.raw() for chunk in early)
    there = home.run(run).output.read_bytes()
    assert len(there) > 4 << 20
    assert data == there
    assert wire.whole(run, "output", 1_000_001) == there[1_000_001:]
    assert wire.whole(run, "output", len(there)) == b""
    assert wire.whole(run, "output", len(there) + 5) == b""
    assert wire.whole(run, "gpu") == home.run(run).gpu.read_bytes()
    assert wire.whole(run, "events") == home.run(run).events.read_bytes()
    assert b"Ended" in wire.whole(run, "events").splitlines()[-1]


def test_unsubscribe_ends_a_stream(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    sub = wire.send(Subscribe(0, run, "events"))
    wire.ask(Ping(0))
    wire.expect(Done, Unsubscribe(0, sub))
    wire.pushes.clear()
    (home.run(run).path / "go").touch()
    wire.ended(run, "completed")
    assert wire.pushes == []
    assert wire.refused(Subscribe(0, run, "events", -1)).problem.code == "usage"


def test_a_client_that_does_not_read_costs_little_and_holds_nobody_up(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("chatty"))
    eventually(lambda: wire.summary(run).samples.done == 1)
    welcome = wire.hello()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(home.socket))
        deaf.sendall(encode(Hello(1, 1)))
        for number in range(2, 66):
            deaf.sendall(encode(Subscribe(number, run, "output")))
        before = _resident(welcome.pid)
        assert wire.whole_until(run, "output", 4 << 20)
        assert isinstance(wire.ask(Ping(0)), Pong)
        assert _resident(welcome.pid) - before < 96 << 20
        (home.run(run).path / "go").touch()
        wire.ended(run, "completed")


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_requests_is_answered_in_full(home: Home) -> None:
    home.attach()
    with socket.socket(socket.AF_UNIX) as flood, flood.makefile("rb") as lines:
        flood.connect(str(home.socket))
        flood.sendall(encode(Hello(1, 1)) + b"".join(encode(Ping(n)) for n in range(2, 1002)))
        flood.shutdown(socket.SHUT_WR)
        replies = [decode_message(line) for line in lines]
    assert len(replies) == 1001


def test_host_samples_come_at_the_interval_and_stop(home: Home) -> None:
    wire = home.attach()
    single = wire.expect(Telemetry, SampleHost(0)).sample
    assert single.cpu_count > 0
    assert single.memory_total
    wire.expect(Done, WatchHost(0, 0.25))
    eventually(lambda: wire.ask(Ping(0)) and len(_samples(wire.pushes)) >= 3)
    wire.expect(Done, WatchHost(0, 0))
    wire.ask(Ping(0))
    count = len(_samples(wire.pushes))
    wire.expect(Telemetry, SampleHost(0))
    assert len(_samples(wire.pushes)) <= count + 1


def _samples(pushes: Sequence[object]) -> list[Telemetry]:
    return [m for m in pushes if isinstance(m, Telemetry)]


def test_the_list_is_served_in_pages(home: Home) -> None:
    wire = home.attach()
    for _ in range(3):
        wire.ended(wire.start(home.profile()), "completed")
    assert [s.run for s in wire.expect(Runs, ListRuns(0)).runs] == ["0001", "0002", "0003"]
    page = wire.expect(Runs, ListRuns(0, before=3))
    assert [s.number for s in page.runs] == [1, 2]
    assert page.older == 0


# ---------------------------------------------------------------- compat and verify


def test_compat_asks_the_profiles_interpreter(home: Home) -> None:
    wire = home.attach()
    reply = wire.expect(Compat, GetCompat(0, home.profile()))
    assert reply.versions == {"vllm": "0.16.0", "speculators": "0.3.0"}
    assert reply.engine == "speculators"
    assert [f.patch for f in reply.findings] == ["speculators/reply-shape"]
    assert reply.problems == ("torch: no such module",)
    own = home.profile()
    own = replace(own, engine=replace(own.engine, name="vllm"))
    reply = wire.expect(Compat, GetCompat(0, own))
    assert (reply.engine, reply.findings) == ("vllm", ())
    problem = wire.refused(GetCompat(0, home.profile("no-report"))).problem
    assert problem.happened == "ImportError: libcudart.so.12"
    assert problem.todo.startswith("Mend what it names")
    home.interpreter.unlink()
    problem = wire.refused(GetCompat(0, home.profile())).problem
    assert str(home.interpreter) in problem.happened


def test_verify_asks_the_profiles_interpreter(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile("hold"))
    assert wire.refused(Verify(0, run)).problem.code == "busy"
    (home.run(run).path / "go").touch()
    wire.ended(run, "completed")
    report = wire.expect(Verified, Verify(0, run, 2)).report
    assert report.ok
    assert [c.index for c in report.checked] == [0, 1]
    assert (report.seed, report.reference_dtype) == (None, "auto")
    report = wire.expect(Verified, Verify(0, run, 0, 7, "checkpoint")).report
    assert (report.seed, report.reference_dtype) == (7, "checkpoint")
    assert wire.refused(Verify(0, run, 1, -1)).problem.code == "usage"
    assert wire.refused(Verify(0, run, -1)).problem.code == "usage"


def test_a_probe_ends_with_the_client_that_asked(home: Home, tmp_path: Path) -> None:
    wire = home.attach()
    file = tmp_path / "probe.pid"
    wire.send(GetCompat(0, home.profile("endless", TEST_PID_FILE=str(file))))
    eventually(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())
    wire.process.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


# ---------------------------------------------------------------- clear


def test_clear_shows_first_and_removes_only_what_is_the_runs(home: Home, tmp_path: Path) -> None:
    wire = home.attach()
    run = wire.start(home.profile())
    wire.ended(run, "completed")
    out = tmp_path / "out"
    precious = tmp_path / "precious.pt"
    precious.write_bytes(b"x" * 1000)
    (out / "notes.txt").write_text("mine")
    (out / "data_9.pt").write_bytes(b"not in the manifest")
    (out / "data_1.pt").unlink()
    (out / "data_1.pt").symlink_to(precious)
    with open(out / "manifest.jsonl", "a") as manifest:
        manifest.write('{"file": "../precious.pt", "bytes": 1000}\n')
        manifest.write('{"file": "/etc/passwd", "bytes": 1}\n[]\nnot json\n')
    before = sorted(p.name for p in out.iterdir())
    preview = wire.expect(Cleared, Clear(0, run))
    assert not preview.removed
    assert preview.files == 3  # data_0, data_2 and the unfinished one
    assert preview.bytes == 2004
    assert preview.kept == ("data_1.pt", "data_9.pt", "notes.txt")
    assert sorted(p.name for p in out.iterdir()) == before
    done = wire.expect(Cleared, Clear(0, run, confirm=True))
    assert done.removed
    assert sorted(p.name for p in out.iterdir()) == ["data_1.pt", "data_9.pt", "notes.txt"]
    assert precious.read_bytes() == b"x" * 1000
    again = wire.refused(Clear(0, run, confirm=True))
    assert "eagle3.json" in again.problem.happened


def test_clear_refuses_a_live_run_a_symlink_and_a_strangers_folder(
    home: Home, tmp_path: Path
) -> None:
    wire = home.attach()
    run = wire.start(home.profile())
    wire.ended(run, "completed")
    live = wire.start(home.profile("hold"))
    assert wire.refused(Clear(0, run, confirm=True)).problem.code == "busy"
    wire.expect(Done, Abort(0, live))
    out, moved = tmp_path / "out", tmp_path / "moved"
    os.rename(out, moved)
    out.symlink_to(moved)
    assert "symlink" in wire.refused(Clear(0, run, confirm=True)).problem.happened
    out.unlink()
    os.rename(moved, out)
    (out / "eagle3.json").write_text('{"run": "0815"}')
    assert "0815" in wire.refused(Clear(0, run, confirm=True)).problem.happened
    assert (out / "data_0.pt").exists()


# ---------------------------------------------------------------- broken folders


def test_a_broken_run_folder_is_listed_and_named(home: Home) -> None:
    wire = home.attach()
    run = wire.start(home.profile())
    wire.ended(run, "completed")
    wire.process.send_signal(signal.SIGTERM)
    home.kill_daemon()
    broken = home.state / "runs" / "0002"
    broken.mkdir()
    (broken / "run.json").write_bytes(b"{half")
    (home.state / "runs" / "junk").mkdir()
    again = home.attach()
    runs = again.expect(Runs, ListRuns(0)).runs
    assert [s.run for s in runs] == ["0001", "0002"]
    assert runs[0].state == "completed"
    assert runs[1].error is not None
    assert "run.json" in runs[1].error.message
    for message in (GetRun(0, "0002"), Resume(0, "0002"), Verify(0, "0002", 1)):
        problem = again.refused(message).problem
        assert problem.title == "The record of run 0002 cannot be read"
        assert str(broken / "run.json") in problem.happened
    third = again.start(home.profile())
    assert third == "0003"
    again.ended(third, "completed")


def test_a_run_folder_removed_by_hand_is_no_run_any_more(home: Home) -> None:
    wire = home.attach()
    for expected in ("0001", "0002", "0002"):  # the number is given again, to a run of its own
        run = wire.start(home.profile())
        assert run == expected
        wire.ended(run, "completed")
        if run == "0002":
            shutil.rmtree(home.state / "runs" / run)
            assert [s.run for s in wire.expect(Runs, ListRuns(0)).runs] == ["0001"]
            assert wire.expect(Detail, GetRun(0, "last")).detail.summary.run == "0001"
            assert wire.refused(GetRun(0, run)).problem.code == "not-found"
