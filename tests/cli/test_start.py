"""start, resume and waiting: verdicts, progress, the object, and the exit code of each outcome."""

from __future__ import annotations

import pytest

from eagle3_agent.protocol.events import (
    Ended,
    Load,
    Note,
    Plan,
    Progress,
    Skipped,
    Spawned,
    Stage,
)
from eagle3_agent.protocol.messages import Detail, GetRun, Resume, Start, Started
from eagle3_agent.protocol.values import Problem, RunState, Samples
from eagle3_console.errors import ConsoleError, ExitCode
from support.cli import BLOCKED, EMPTY_MESSAGE, READY, Bench, detail, pieces, summary

EVENTS = (
    Stage(0.0, "preflight", "start"),
    Stage(2.0, "preflight", "done"),
    Spawned(2.0, 10, 11, ("python",)),
    Stage(2.0, "load", "start"),
    Load(3.0, 1, 4),
    Load(6.0, 4, 4),
    Stage(6.0, "load", "done"),
    Stage(6.0, "extract", "start"),
    Plan(6.0, 10, 5000),
    Progress(8.0, 4, 10, 0, 2000, 1 << 19, 1000.0, 2.0, 3.0),
    Skipped(8.5, 5, "longer than the model takes"),
    Note(8.6, "warning", "the loss mask is empty"),
    Progress(11.0, 9, 10, 1, 5000, 1 << 20, 1000.0, 2.0, 0.0),
    Stage(11.0, "extract", "done"),
    Stage(11.0, "done", "done"),
    Ended(11.5, "incomplete", 0),
)

KEYS = {
    "run",
    "state",
    "attempt",
    "profile",
    "engine",
    "started",
    "ended",
    "samples",
    "tokens",
    "tokens_per_second",
    "output_dir",
    "error",
    "preflight",
}


def _accepts(host: Bench, state: RunState = "completed", **changes: object) -> None:
    host.answers[Start] = Started(1, "0004", queued=False, report=READY)
    host.answers[Resume] = Started(1, "0005", queued=False, report=READY)
    host.answers[GetRun] = Detail(1, detail(summary(state, **changes)))
    host.streams["events"] = pieces(*EVENTS)


def test_start_sends_the_resolved_profile(host: Bench, profile_path: str) -> None:
    _accepts(host, "running")
    ran = host.run(
        "start", "gpu-01", "-p", profile_path, "--set", "data.max_samples=3", "model.dtype=float32",
        "--force", "disk", "--queue",
    )  # fmt: skip
    assert ran.code == ExitCode.DONE
    sent = host.link.asked[0]
    assert sent.profile.name == "kimi"
    assert (sent.profile.data.max_samples, sent.profile.model.dtype) == (3, "float32")
    assert (sent.force, sent.queue) == (("disk",), True)
    assert "✓ 1 passes" in ran.out
    assert "run 0004 started" in ran.out
    assert "watch it with: eagle3-console connect gpu-01" in ran.out


def test_start_json_has_the_keys(host: Bench, profile_path: str) -> None:
    _accepts(host, "running", tokens_per_second=None)
    ran = host.run("start", "gpu-01", "-p", profile_path, "--json")
    assert set(ran.object) >= KEYS
    assert ran.object["state"] == "running"
    assert ran.object["ended"] is None
    assert ran.object["samples"] == {"total": 10, "done": 10, "skipped": 0}
    assert ran.object["preflight"]["verdicts"][0]["check"] == "model"


def test_a_forced_start_says_over_what(host: Bench, profile_path: str) -> None:
    _accepts(host, "running")
    host.answers[Start] = Started(1, "0004", queued=False, report=BLOCKED)
    ran = host.run("start", "gpu-01", "-p", profile_path, "--force", "gpu-clean", "disk")
    assert ran.code == ExitCode.DONE
    assert "BLOCKED by 2 of 3 checks" in ran.out
    assert "started all the same, over gpu-clean, disk (--force)" in ran.out


def test_a_blocked_start_names_what_to_force(host: Bench, profile_path: str) -> None:
    problem = Problem("Blocked", "2 checks", "Force gpu-clean.", "blocked")
    host.answers[Start] = ConsoleError(problem, BLOCKED)
    ran = host.run("start", "gpu-01", "-p", profile_path)
    assert ran.code == ExitCode.FAILED
    assert "✗ GPU 3  (gpu-clean)\n    58.4 GiB held by pid 48213\n" in ran.out
    assert "▸ end pid 48213" in ran.out
    assert "BLOCKED by 2 of 3 checks (gpu-clean, disk), 1.8 s" in ran.out
    assert ran.err.startswith("checking the host …\nBlocked\n")
    assert "Force gpu-clean." in ran.err
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait", "--json")
    assert ran.code == ExitCode.FAILED
    assert ran.object["problem"]["code"] == "blocked"
    assert len(ran.object["preflight"]["verdicts"]) == 3


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("completed", ExitCode.DONE),
        ("incomplete", ExitCode.INCOMPLETE),
        ("failed", ExitCode.FAILED),
        ("aborted", ExitCode.FAILED),
        ("lost", ExitCode.FAILED),
    ],
)
def test_wait_ends_in_the_runs_own_code(
    host: Bench, profile_path: str, state: RunState, code: ExitCode
) -> None:
    _accepts(host, state)
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait", "--json")
    assert ran.code == code
    assert ran.object["state"] == state
    assert host.link.streamed == [("0004", "events", 0)]


def test_wait_shows_stages_progress_and_what_was_skipped(host: Bench, profile_path: str) -> None:
    _accepts(host, "incomplete", samples=Samples(10, 9, 1))
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait")
    assert ran.code == ExitCode.INCOMPLETE
    lines = ran.out.splitlines()
    assert "  ✓ preflight     2 s" in lines
    assert "  ✓ load          4 s" in lines
    assert "  ! sample 5 skipped: longer than the model takes" in lines
    assert "  ! the loss mask is empty" in lines
    first = "  ▶ extract   4 / 10 samples   1 000 tok/s   512.0 KiB   ETA 3 s (mean of this run)"
    assert first in lines
    assert "! run 0004 incomplete after 1:40" in lines
    assert "\x1b" not in ran.out


def test_an_error_without_a_message_is_still_told(host: Bench, profile_path: str) -> None:
    _accepts(host, "failed", error=EMPTY_MESSAGE)
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait")
    assert "  rank 3: AssertionError" in ran.out.splitlines()
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait", "--json")
    assert ran.object["error"] == {
        "type": "AssertionError",
        "message": "",
        "rank": 3,
        "where": None,
    }


def test_ctrl_c_ends_the_waiting_and_not_the_run(host: Bench, profile_path: str) -> None:
    _accepts(host)

    def interrupted(_: GetRun) -> Detail:
        raise KeyboardInterrupt

    host.answers[GetRun] = interrupted
    ran = host.run("start", "gpu-01", "-p", profile_path, "--wait")
    assert ran.code == ExitCode.INTERRUPTED
    assert "interrupted. run 0004 goes on." in ran.err
    assert "eagle3-console abort gpu-01 0004" in ran.err


def test_ctrl_c_during_the_checks_says_that_a_run_may_begin(host: Bench, profile_path: str) -> None:
    def interrupted(_: Start) -> Started:
        raise KeyboardInterrupt

    host.answers[Start] = interrupted
    ran = host.run("start", "gpu-01", "-p", profile_path)
    assert ran.code == ExitCode.INTERRUPTED
    assert "A run may have begun: `eagle3-console runs gpu-01` tells" in ran.err


def test_resume_goes_by_run(host: Bench) -> None:
    _accepts(host)
    ran = host.run("resume", "gpu-01", "last", "--wait", "--json")
    assert ran.code == ExitCode.DONE
    assert host.link.asked[0].run == "last"
    assert host.link.streamed == [("0005", "events", 0)]


def test_a_bad_profile_asks_no_host(host: Bench, profile_path: str) -> None:
    ran = host.run("start", "gpu-01", "-p", profile_path, "--set", "capture.layers=[]", "--json")
    assert ran.code == ExitCode.USAGE
    assert ran.object["problem"]["code"] == "usage"
    assert "--set: capture.layers: is empty" in ran.err
    assert host.link.asked == []
