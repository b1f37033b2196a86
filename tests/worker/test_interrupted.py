"""Runs that do not reach their end: killed, stopped, out of disk; and what resumes them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Plan
from eagle3_agent.protocol.values import OutputFormat, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import tiny

pytestmark = pytest.mark.worker

COUNT = 400

#: Writer threads of a run here: each may have a file without a line when it is killed.
THREADS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long enough for a run to be caught in the middle."""
    return tiny.write_jsonl(tmp_path_factory.mktemp("data") / "data.jsonl", tiny.rows(COUNT))


@pytest.fixture
def run(python: Path, models: dict[tiny.Kind, Path], data: Path, tmp_path: Path) -> RunFolder:
    asked = tiny.profile(python, models["llama"], data, tmp_path / "out")
    asked = replace(asked, output=replace(asked.output, writer_threads=THREADS))
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


def _content(output: Path) -> dict[str, object]:
    """What must be the same whoever wrote it, in however many attempts."""
    files: dict[str, object] = {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name != "manifest.jsonl"
    }
    # written by threads: in any order, and a torn line of a killed attempt is ended by the next
    files["manifest.jsonl"] = {e["index"]: e for e in map(json.loads, _manifest(output))}
    return files


@pytest.fixture(scope="module")
def whole(
    python: Path,
    models: dict[tiny.Kind, Path],
    data: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[OutputFormat, dict[str, object]]:
    """The content of uninterrupted runs over the same data."""
    made: dict[OutputFormat, dict[str, object]] = {}
    kinds: tuple[OutputFormat, ...] = ("speculators-pt", "safetensors")
    for kind in kinds:
        root = tmp_path_factory.mktemp("whole")
        asked = tiny.profile(python, models["llama"], data, root / "out", kind=kind)
        assert tiny.work(tiny.make_run(root / "0001", asked)) == 0
        made[kind] = _content(root / "out")
    return made


def _kill_at(count: int, run: RunFolder, output: Path) -> None:
    with tiny.spawn(run) as process:
        tiny.wait_for(lambda: len(_manifest(output)) >= count, process)
        process.kill()


def _same(mine: dict[str, object], whole: dict[str, object]) -> None:
    """Equal but for files that were moved aside."""
    aside = {name for name in mine if name.endswith(".aside")}
    # renamed, and killed before its line was written: made again, and nothing is lost
    assert len(aside) <= 2 * THREADS
    assert all(mine[name] == mine[name.removesuffix(".aside")] for name in aside)
    names = mine.keys() - aside
    assert names == whole.keys()
    assert [n for n in sorted(names) if mine[n] != whole[n]] == []


@pytest.mark.parametrize(
    ("kind", "kills"), [("speculators-pt", (30, 120)), ("safetensors", (100,))]
)
def test_a_run_that_was_killed_ends_with_the_bytes_of_one_that_was_not(
    run: RunFolder,
    tmp_path: Path,
    whole: dict[OutputFormat, dict[str, object]],
    kind: OutputFormat,
    kills: tuple[int, ...],
) -> None:
    tiny.change_profile(run, lambda p: replace(p, output=replace(p.output, format=kind)))
    profile = run.record().profile
    attempt = run
    for number, count in enumerate(kills, 2):
        _kill_at(count, attempt, tmp_path / "out")
        attempt = tiny.make_run(tmp_path / f"000{number}", profile)
    assert tiny.work(attempt) == 0
    _same(_content(tmp_path / "out"), whole[kind])


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
output=$1 results=$2 again=$3
shift 3
mkdir "$output"
mount -t tmpfs -o size=512k tmpfs "$output"
"$@" && status=0 || status=$?
ls -A "$output/states" > "$results/listing"
mount -o remount,size=64m "$output"
"$1" -m eagle3_agent.worker run "$again" || exit 99
cp -a "$output/states" "$results/states"
exit $status
"""


def test_a_full_disk_ends_the_run_at_once_and_space_lets_it_go_on(
    run: RunFolder, tmp_path: Path, whole: dict[OutputFormat, dict[str, object]]
) -> None:
    output, results = tmp_path / "small", tmp_path / "results"
    results.mkdir()
    tiny.change_profile(
        run, lambda p: replace(p, output=replace(p.output, dir=str(output / "states")))
    )
    again = tiny.make_run(tmp_path / "0002", run.record().profile)
    allowed = subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no mount namespace here: {allowed.stderr.strip()}")
    # the mount is gone with the process
    paths = map(str, (output, results, again.path))
    status = tiny.work(run, wrap=[*_OWN_MOUNTS, "sh", "-c", _SMALL_DISK, "sh", *paths])

    assert status == 1, run.output.read_text()
    error = tiny.failure(run).error
    assert error.type == "OutputError"
    assert re.fullmatch(
        f"no space left on {output / 'states'}: free some, then resume the run; "
        r"\d\.\d GiB are still to be written",
        error.message,
    )
    assert not tiny.finished(run)
    names = (results / "listing").read_text().split()
    first = [n for n in names if n.startswith("data_")]
    assert first
    assert [n for n in names if n.endswith(".partial")] == []
    assert tiny.progress(run).done < COUNT
    assert b"Traceback" not in run.output.read_bytes()

    # space was made by hand: the next attempt keeps what was good, and ends as if nothing was
    assert tiny.finished(again)
    (planned,) = [e for e in tiny.events(again) if isinstance(e, Plan)]
    assert 0 < planned.reused <= len(first)
    _same(_content(results / "states"), whole["speculators-pt"])
