"""Runs that do not reach their end: killed, stopped, out of disk; and what resumes them."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Plan
from eagle3_agent.protocol.values import VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import tiny

pytestmark = pytest.mark.worker

COUNT = 400


@pytest.fixture
def run(python: Path, models: dict[tiny.Kind, Path], tmp_path: Path) -> RunFolder:
    """Long enough to be caught in the middle."""
    data = tiny.write_jsonl(tmp_path / "data.jsonl", tiny.rows(COUNT))
    asked = tiny.profile(python, models["llama"], data, tmp_path / "out")
    return tiny.make_run(tmp_path / "0001", asked)


def _samples(output: Path) -> list[Path]:
    return sorted(output.glob("data_*.pt"))


def _manifest(output: Path) -> list[str]:
    path = output / "manifest.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _partials(output: Path) -> list[str]:
    return [p.name for p in output.iterdir() if p.name.endswith(".partial")]


def test_a_killed_run_resumes_to_a_complete_valid_set(run: RunFolder, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with tiny.spawn(run) as process:
        tiny.wait_for(lambda: len(_manifest(output)) >= 20, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = [json.loads(line) for line in _manifest(output)]
    assert 20 <= len(before) < COUNT
    assert not tiny.finished(run)

    # what else a crash or a careless hand can leave
    first, second, third, fourth = (output / entry["file"] for entry in before[:4])
    first.write_bytes(first.read_bytes()[:-10])
    body = bytearray(second.read_bytes())
    body[len(body) // 2] ^= 1
    second.write_bytes(bytes(body))
    third.unlink()
    fourth_changed = fourth.stat().st_mtime_ns
    (output / ".data_7.pt.99999.partial").write_bytes(b"half")
    with (output / "manifest.jsonl").open("ab") as file:
        file.write(b'{"index":399,"fil')

    again = tiny.make_run(tmp_path / "0002", run.record().profile)
    assert tiny.work(again) == 0

    (planned,) = [e for e in tiny.events(again) if isinstance(e, Plan)]
    assert (planned.total, planned.reused) == (COUNT, len(before) - 3)
    assert tiny.progress(again).done == COUNT
    assert tiny.finished(again)
    assert fourth.stat().st_mtime_ns == fourth_changed
    assert len(_samples(output)) == COUNT
    assert _partials(output) == []
    report = tmp_path / "report.json"
    assert tiny.work(again, "verify", str(again.path), "--report", str(report)) == 0
    verdict = read_value(report, VerifyReport)
    assert (verdict.ok, verdict.files, verdict.bad_files) == (True, COUNT, ())

    # nothing is left to do: the model is not even loaded
    third_run = tiny.make_run(tmp_path / "0003", run.record().profile)
    assert tiny.work(third_run) == 0
    assert tiny.progress(third_run).done == COUNT
    assert tiny.finished(third_run)
    assert third_run.output.read_bytes() == b""


def test_sigterm_stops_cleanly(run: RunFolder, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with tiny.spawn(run) as process:
        tiny.wait_for(lambda: len(_manifest(output)) >= 5, process)
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert _partials(output) == []
    assert not tiny.finished(run)
    lines = [json.loads(line) for line in _manifest(output)]
    assert {entry["file"] for entry in lines} == {p.name for p in _samples(output)}
    assert tiny.progress(run).done == len(lines) < COUNT
    assert b"Traceback" not in run.output.read_bytes()


#: A mount namespace of one's own needs no root, unless the kernel or a container forbids it.
_OWN_MOUNTS = ["unshare", "--mount", "--map-root-user"]

_SMALL_DISK = """
set -e
mkdir "$1"
mount -t tmpfs -o size=512k tmpfs "$1"
output=$1 listing=$2
shift 2
"$@" && status=0 || status=$?
ls -A "$output/states" > "$listing"
exit $status
"""


def test_a_full_disk_ends_the_run_at_once(run: RunFolder, tmp_path: Path) -> None:
    output, listing = tmp_path / "small", tmp_path / "listing"
    tiny.change_profile(
        run, lambda p: replace(p, output=replace(p.output, dir=str(output / "states")))
    )
    allowed = subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no mount namespace here: {allowed.stderr.strip()}")
    # the mount is gone with the process
    wrap = [*_OWN_MOUNTS, "sh", "-c", _SMALL_DISK, "sh", str(output), str(listing)]
    status = tiny.work(run, wrap=wrap)

    assert status == 1, run.output.read_text()
    error = tiny.failure(run).error
    assert error.type == "OutputError"
    assert error.message.startswith(f"no space left on {output / 'states'}")
    assert not tiny.finished(run)
    names = listing.read_text().split()
    assert [n for n in names if n.startswith("data_")]
    assert [n for n in names if n.endswith(".partial")] == []
    assert tiny.progress(run).done < COUNT
    assert b"Traceback" not in run.output.read_bytes()
