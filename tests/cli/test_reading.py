"""What a host answers, as text and as JSON: the commands that change nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eagle3_agent.protocol.events import Load, Stage, Throughput
from eagle3_agent.protocol.messages import (
    AgentStatus,
    Checked,
    Compat,
    Detail,
    Done,
    GetCompat,
    GetRun,
    ListRuns,
    RunPreflight,
    Runs,
    SampleHost,
    Status,
    StopAgent,
    Telemetry,
    Verified,
    Verify,
)
from eagle3_agent.protocol.values import (
    ErrorInfo,
    Gpu,
    GpuProcess,
    HostSample,
    PatchFinding,
    Problem,
    SampleCheck,
    Samples,
    VerifyReport,
    Where,
)
from eagle3_console import render
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.linkstate import Piece
from support.cli import BLOCKED, PROFILE, READY, Bench, detail, pieces, summary


def test_no_runs_yet(host: Bench) -> None:
    host.answers[ListRuns] = Runs(1, ())
    assert host.run("runs", "local").out == "no runs yet\n"
    assert host.run("runs", "local", "--json").object == {"target": "local", "runs": []}


def test_runs_are_a_table_with_their_errors(host: Bench) -> None:
    failed = summary("failed", run="0003", number=3, error=ErrorInfo("RuntimeError", "ambi\nguous"))
    host.answers[ListRuns] = Runs(1, (failed, summary()))
    lines = host.run("runs", "local").out.splitlines()
    assert lines[0].split()[:3] == ["run", "state", "try"]
    assert "✗ failed" in lines[1]
    assert "RuntimeError: ambi" in lines[1]
    assert "2 264" in lines[2] or "2 265" in lines[2]
    listed = host.run("runs", "local", "--json").object["runs"]
    assert [run["run"] for run in listed] == ["0003", "0004"]
    assert listed[1]["tokens_per_second"] == 2264.5


def test_show_has_profile_preflight_patches_environment(host: Bench) -> None:
    error = ErrorInfo("RuntimeError", "boom", 0, Where("gen.py", 273, "go", "if x:"), "Traceback…")
    patch = PatchFinding("speculators/reply-shape", "Reply", "needed", "seen")
    host.answers[GetRun] = Detail(
        1,
        detail(
            summary("failed", error=error), preflight=BLOCKED, patches=(patch,), forced=("disk",)
        ),
    )
    shown = host.run("show", "local", "4", "--json").object
    assert shown["profile"]["capture"]["layers"] == [2, 30, 58, 60]
    assert shown["preflight"]["verdicts"][1]["status"] == "block"
    assert shown["patches"][0]["patch"] == "speculators/reply-shape"
    assert shown["environment"]["torch"] == "2.10.0"
    assert shown["error"]["traceback"] == "Traceback…"
    assert shown["error"]["where"]["line"] == 273
    text = host.run("show", "local", "4").out
    for word in ("RuntimeError: boom", "gen.py:273", "reply-shape", "layers=[2, 30", "580.95"):
        assert word in text


def test_show_says_what_bounds_the_run(host: Bench) -> None:
    told = Throughput(
        t=9.0, seconds=100.0, tokens=230_000, steps=112, prefill=57.0, capture=2.0, copy=8.0,
        write=396.0, wait=38.0, padding=0.0, fill=0.97, threads=4, buffer_peak=8 << 30,
        buffer_limit=8 << 30,
    )  # fmt: skip
    host.answers[GetRun] = Detail(1, detail(throughput=told))
    shown = host.run("show", "local", "4", "--json").object["throughput"]
    assert shown["bound"] == "waiting"
    assert shown["words"] == "bound by the disk: the model waited 38 % of the time"
    assert shown["shares"]["waiting"] == pytest.approx(0.38)
    assert (shown["write"], shown["threads"], shown["buffer_limit"]) == (396.0, 4, 8 << 30)
    text = host.run("show", "local", "4").out
    assert "bound by the disk: the model waited 38 % of the time" in text
    assert "4 writers 99 % busy   buffer 8.0 GiB of 8.0 GiB   steps 97 % full" in text
    host.answers[GetRun] = Detail(1, detail())
    assert host.run("show", "local", "4", "--json").object["throughput"] is None


def test_a_run_that_is_not_there(host: Bench) -> None:
    host.answers[GetRun] = ConsoleError(Problem("There is no run 9", "…", "List.", "not-found"))
    assert host.run("show", "local", "9").code == ExitCode.FAILED


def test_diff_tells_what_changed_and_folds_the_rest(host: Bench) -> None:
    patch = PatchFinding("speculators/reply-shape", "Reply", "needed", "seen")
    before = detail(summary("failed", run="0003"))
    after = detail(
        resolved=replace(PROFILE, data=replace(PROFILE.data, max_samples=1000)), patches=(patch,)
    )
    host.answers[GetRun] = lambda asked: Detail(1, before if asked.run == "3" else after)
    lines = host.run("diff", "local", "3", "4").out.splitlines()
    assert lines[0] == "run 4 ✗ failed 1:40  →  run 4 ✓ completed 1:40"
    assert "  profile      + data.max_samples   1000" in lines
    assert "  patches      + speculators/reply-shape   needed" in lines
    assert lines[-1].startswith("  the same     ")
    assert "1 package, driver 580.95" in lines[-1]
    found = host.run("diff", "local", "3", "4", "--json").object
    assert found["same"] is False
    assert found["sections"][0]["changes"] == [
        {"key": "data.max_samples", "before": None, "after": 1000}
    ]


def test_events_are_whole_lines_up_to_a_byte(host: Bench) -> None:
    host.answers[GetRun] = Detail(1, detail(summary("running")))
    host.streams["events"] = [
        *pieces(Stage(1.0, "load", "start"), Load(2.0, 1, 4), ended=False),
    ]
    torn = Piece(0, b'{"type":"Load","t":3', caught_up=True, ended=False)
    host.streams["events"] = [replace(p, caught_up=False) for p in host.streams["events"]] + [torn]
    ran = host.run("events", "local", "4", "--from", "100")
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["type"] for event in events] == ["Stage", "Load"]
    assert ran.err == f"events up to byte {100 + len(ran.out)}\n"
    assert host.link.streamed == [("0004", "events", 100)]


def test_without_follow_a_stream_ends_where_the_file_does(host: Bench) -> None:
    host.answers[GetRun] = Detail(1, detail(summary("running")))
    host.streams["output"] = [
        Piece(0, b"one\n", caught_up=True, ended=False),
        Piece(4, b"two\n", caught_up=True, ended=True),
    ]
    assert host.run("logs", "local", "4").out == "one\n"
    assert host.run("logs", "local", "4", "--follow").out == "one\ntwo\n"


GPUS = HostSample(
    5.0,
    (
        Gpu(0, "GPU-a", "RTX", 0, 96 << 30, 98, 64, 412.4, 600.0),
        Gpu(
            1,
            "GPU-b",
            "RTX",
            58 << 30,
            96 << 30,
            processes=(GpuProcess(48213, "root", "VLLM::Engine\x1b[2J", None),),
        ),
        Gpu(2, error="GPU is lost"),
    ),
    driver="580.95",
    cpu_count=2,
)


def test_gpus_show_what_is_known_and_no_more(host: Bench) -> None:
    host.answers[SampleHost] = Telemetry(GPUS, 1)
    ran = host.run("gpus", "local")
    lines = ran.out.splitlines()
    assert "0.0 / 96.0" in lines[2]
    assert "412 W" in lines[2]
    assert "48213 root VLLM::Engine" in lines[3]
    assert "GPU is lost" in lines[4]
    assert "\x1b" not in ran.out
    sample = host.run("gpus", "local", "--json").object
    assert sample["gpus"][1]["temperature"] is None
    assert sample["gpus"][2]["error"] == "GPU is lost"


def test_gpus_watch_prints_a_line_each_time(host: Bench) -> None:
    seen = 0

    def answer(_: Any) -> Telemetry:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise KeyboardInterrupt
        return Telemetry(GPUS, 1)

    host.answers[SampleHost] = answer
    ran = host.run("gpus", "local", "--json", "--watch", "0.1")
    assert ran.code == ExitCode.INTERRUPTED
    assert [json.loads(line)["driver"] for line in ran.out.splitlines()] == ["580.95", "580.95"]


def test_preflight_blocks_with_one(host: Bench, profile_path: str) -> None:
    host.answers[RunPreflight] = Checked(1, BLOCKED)
    ran = host.run("preflight", "local", "-p", profile_path)
    assert ran.code == ExitCode.FAILED
    assert "BLOCKED by 2 of 3 checks (gpu-clean, disk), 1.8 s" in ran.out
    ran = host.run("preflight", "local", "-p", profile_path, "--json")
    assert ran.code == ExitCode.FAILED
    assert ran.object["ready"] is False
    assert ran.object["blocking"] == ["gpu-clean", "disk"]
    host.answers[RunPreflight] = Checked(1, READY)
    assert host.run("preflight", "local", "-p", profile_path).code == ExitCode.DONE


def test_compat_gives_the_evidence(host: Bench, profile_path: str) -> None:
    findings = (
        PatchFinding(
            "a/one", "One", "needed", "signature (x)", "it hangs", "why", "call y", "0.17"
        ),
        PatchFinding("a/two", "Two", "not-needed", "signature (y)"),
        PatchFinding("a/three", "Three", "cannot-tell", "cannot import"),
    )
    problems = ("torch: ImportError: libcudart.so.12",)
    host.answers[GetCompat] = Compat(1, findings, {"vllm": "0.16.0"}, 3.0, problems)
    ran = host.run("compat", "local", "-p", profile_path)
    assert ran.code == ExitCode.DONE
    for words in ("vllm 0.16.0", "a/one  needed", "it hangs", "1 needed, 1 not needed, 1 cannot"):
        assert words in ran.out
    shown = host.run("compat", "local", "-p", profile_path, "--json").object
    assert [finding["status"] for finding in shown["findings"]] == [
        "needed",
        "not-needed",
        "cannot-tell",
    ]
    assert shown["problems"] == list(problems)


def test_compat_of_an_engine_that_needs_no_patch_says_so(host: Bench, profile_path: str) -> None:
    host.answers[GetCompat] = Compat(1, (), {"vllm": "0.32.0"}, 1.5, (), "vllm")
    ran = host.run("compat", "local", "-p", profile_path)
    assert ran.out.splitlines() == ["vllm 0.32.0", "engine vllm: no patch bears on it; 1.5 s"]
    shown = host.run("compat", "local", "-p", profile_path, "--json").object
    assert (shown["engine"], shown["findings"]) == ("vllm", [])


@pytest.mark.parametrize(("ok", "code"), [(True, ExitCode.DONE), (False, ExitCode.FAILED)])
def test_verify_is_the_exit_code(host: Bench, ok: bool, code: ExitCode) -> None:
    report = VerifyReport(
        ok,
        (SampleCheck(3, ok, 120, 0.0123),),
        56,
        () if ok else ("data_7.pt",),
        0.04,
        "bfloat16",
        9.0,
    )
    host.answers[Verify] = Verified(1, report)
    ran = host.run("verify", "local", "last", "--samples", "5")
    assert ran.code == code
    assert "1.23e-02" in ran.out
    assert ("NOT verified" in ran.out) is not ok
    assert host.link.asked[0] == Verify(0, "last", 5)
    options = ("--samples", "2", "--seed", "7", "--dtype", "checkpoint")
    host.run("verify", "local", "last", *options)
    assert host.link.asked[-1] == Verify(0, "last", 2, 7, "checkpoint")
    assert host.run("verify", "local", "last", "--json").object["ok"] is ok


def test_verify_of_the_files_alone(host: Bench) -> None:
    bad = ("data_3.pt: missing",)
    report = VerifyReport(False, (), 6, bad, 0.04, "bfloat16", 0.5, "none: no sample")
    host.answers[Verify] = Verified(1, report)
    ran = host.run("verify", "local", "last", "--samples", "0")
    assert ran.code == ExitCode.FAILED
    assert host.link.asked[0].samples == 0
    assert "✗ data_3.pt: missing\n" in ran.out
    assert "NOT verified: no sample recomputed (6 files checked, 1 bad; 0.5 s)" in ran.out


def test_agent_status_stop_and_upgrade(host: Bench) -> None:
    host.answers[AgentStatus] = Status(1, "ab" * 32, 77, 1000.0, "/state", 1, ("0004",), ())
    host.answers[StopAgent] = Done(1)
    assert "pid 77" in host.run("agent", "status", "local").out
    assert [type(asked) for asked in host.link.asked] == [AgentStatus]
    host.link.asked.clear()
    host.link.agent_outdated = True
    assert "eagle3-console agent upgrade local" in host.run("agent", "status", "local").out
    host.link.asked.clear()
    assert host.run("agent", "stop", "local", "--json").object["stopped"] is True
    assert [type(asked) for asked in host.link.asked] == [StopAgent]
    host.link.asked.clear()
    assert host.run("agent", "upgrade", "local").code == ExitCode.DONE
    assert [type(asked) for asked in host.link.asked] == [StopAgent, AgentStatus]


def test_what_a_link_remarks_is_told_on_stderr(host: Bench) -> None:
    host.answers[ListRuns] = Runs(1, ())
    host.link.warnings = ("The shell's start-up files print \x1b[5m",)
    ran = host.run("runs", "local", "--json")
    assert ran.object["runs"] == []
    assert ran.err == "! The shell's start-up files print \n"


def test_an_answer_of_the_wrong_kind_is_told(host: Bench) -> None:
    host.answers[ListRuns] = Done(1)
    ran = host.run("runs", "local")
    assert ran.code == ExitCode.FAILED
    assert "Asked ListRuns, got Done." in ran.err


def test_a_run_that_found_everything_there_says_so() -> None:
    run = summary("completed", samples=Samples(6, 6, 0), tokens=0, tokens_per_second=None, bytes=0)
    assert "  6 / 6 samples   all of them kept from before" in render.outcome(run)
