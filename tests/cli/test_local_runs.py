"""The whole job through the command line: real agent, real worker with torch, a tiny model."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from eagle3_console.errors import ExitCode
from support import tiny
from support.local import Local, job

pytestmark = pytest.mark.worker


@pytest.fixture
def small(local: Local, worker_python: Path, tiny_model: Path, tmp_path: Path) -> str:
    """A profile over a dozen rows."""
    data = tiny.write_jsonl(tmp_path / "data.jsonl", tiny.rows(12))
    return local.profile(**job(worker_python, tiny_model, data, tmp_path / "out"))


@pytest.fixture
def long(local: Local, worker_python: Path, tiny_model: Path, tmp_path: Path) -> str:
    """A profile that takes long enough to be interrupted."""
    data = tiny.write_jsonl(tmp_path / "data.jsonl", tiny.rows(6000))
    return local.profile("long", **job(worker_python, tiny_model, data, tmp_path / "out"))


def test_the_whole_job(local: Local, small: str) -> None:
    ran = local.run("start", "local", "-p", small, "--wait", "--json")
    assert ran.code == ExitCode.DONE, ran.err
    run = ran.object
    assert (run["run"], run["state"], run["attempt"]) == ("0001", "completed", 1)
    assert run["samples"] == {"total": 12, "done": 12, "skipped": 0}
    assert run["tokens"] > 0
    assert run["output_dir"] == str(local.folder / "out")
    assert "✓ extract" in ran.err

    events = local.run("events", "local", "1")
    assert events.out == (local.home / "state" / "runs" / "0001" / "events.jsonl").read_text()
    assert json.loads(events.out.splitlines()[-1])["type"] == "Ended"
    offset = events.out.index("\n") + 1
    assert local.run("events", "local", "1", "--from", str(offset)).out == events.out[offset:]

    checked = local.run("verify", "local", "last", "--samples", "2", "--json")
    assert checked.code == ExitCode.DONE, checked.err
    assert checked.object["ok"] is True
    assert checked.object["files"] == 12

    shown = local.run("show", "local", "1", "--json").object
    assert shown["profile"]["capture"]["layers"] == [1, 3, 5]
    assert shown["environment"]["torch"]

    cleared = local.run("clear", "local", "1", "--yes", "--json")
    assert cleared.object["removed"] is True
    assert not list((local.folder / "out").glob("data_*.pt"))


def test_one_broken_line_ends_incomplete(local: Local, small: str) -> None:
    rows = [*tiny.rows(3), b'{"input_ids": [1, 2']
    tiny.write_jsonl(local.folder / "data.jsonl", rows)
    ran = local.run("start", "local", "-p", small, "--wait")
    assert ran.code == ExitCode.INCOMPLETE
    assert "! sample 3 skipped: line 4" in ran.out
    assert "3 / 4 samples, 1 skipped" in ran.out


def _started(process: subprocess.Popen[str]) -> None:
    """Reads a command's output up to the line that says that its run began."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("run 0001 started"):
            return
    pytest.fail("the command ended before its run began")


def test_ctrl_c_leaves_the_run_and_abort_and_resume_finish_it(local: Local, long: str) -> None:
    process = local.start("start", "local", "-p", long, "--wait")
    _started(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted. run 0001 goes on." in err
    assert "Traceback" not in err
    assert local.run("show", "local", "1", "--json").object["state"] == "running"

    refused = local.run("abort", "local", "1")
    assert refused.code == ExitCode.USAGE
    ended = local.run("abort", "local", "1", "--yes", "--json")
    assert ended.code == ExitCode.DONE
    assert ended.object["state"] == "aborted"

    few = local.run("resume", "local", "1", "--json")
    assert few.code == ExitCode.DONE
    assert few.object["attempt"] == 2
    assert local.run("abort", "local", "last", "--yes").code == ExitCode.DONE
    changed = local.run("diff", "local", "1", "2", "--json").object
    assert all(
        not section["changes"]
        for section in changed["sections"]
        if section["title"] in ("profile", "environment")
    )


@pytest.mark.parametrize(
    ("typed", "code"), [(b"n\n", ExitCode.FAILED), (b"\x03", ExitCode.INTERRUPTED)]
)
def test_abort_asks_on_a_real_terminal(
    local: Local, long: str, typed: bytes, code: ExitCode
) -> None:
    assert local.run("start", "local", "-p", long).code == ExitCode.DONE
    ours, theirs = pty.openpty()
    process = local.start(
        "abort", "local", "last", stdin=theirs, stdout=theirs, stderr=theirs,
        preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, typed)
    assert process.wait(60) == code
    os.close(ours)
    assert local.run("show", "local", "last", "--json").object["state"] == "running"


def _own_terminal() -> None:
    """In the child: a session whose controlling terminal is stdin, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # a test runner may ignore it and hand that on; a person's shell does not
    signal.signal(signal.SIGINT, signal.SIG_DFL)
