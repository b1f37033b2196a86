"""Whole runs of a user's own script: what it wrote is proven, resumed and accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Patched, Plan, Wrote
from eagle3_agent.protocol.values import Profile, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import own_script, tiny

pytestmark = pytest.mark.worker

COUNT = 12


@pytest.fixture
def asked(python: Path, models: dict[tiny.Kind, Path], tmp_path: Path) -> Profile:
    """The profile of a run of 03_extract.py, which lies beside its data."""
    script = own_script.place(tmp_path / "mine")
    data = tiny.write_jsonl(tmp_path / "mine" / "data.jsonl", tiny.rows(COUNT))
    asked = tiny.profile(python, models["llama"], data, tmp_path / "out", layers=own_script.LAYERS)
    return own_script.with_script(asked, script, own_script.usual_args(asked))


def _verify(run: RunFolder, report: Path) -> VerifyReport:
    assert tiny.work(run, "verify", str(run.path), "--report", str(report)) == 0
    return read_value(report, VerifyReport)


def test_an_unmodified_script_gives_a_run_like_any_other(asked: Profile, tmp_path: Path) -> None:
    run = own_script.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 0, run.output.read_text()

    events = tiny.events(run)
    assert own_script.stages(run) == ["load", "extract", "write", "done"]
    (planned,) = [e for e in events if isinstance(e, Plan)]
    rows = tiny.rows(COUNT)
    tokens = sum(len(r["input_ids"]) for r in rows)
    assert (planned.total, planned.tokens, planned.reused) == (COUNT, tokens, 0)
    last = tiny.progress(run)
    assert (last.done, last.total, last.skipped, last.tokens) == (COUNT, COUNT, 0, tokens)
    assert last.bytes == sum(p.stat().st_size for p in (tmp_path / "out").glob("data_*.pt"))
    wrote = [e for e in events if isinstance(e, Wrote)]
    assert wrote[-1].layers == 3
    assert wrote[-1].shape[1] == tiny.HIDDEN
    (patched,) = [e for e in events if isinstance(e, Patched)]
    assert (patched.finding.patch, patched.applied) == ("script/atomic-save", True)
    assert own_script.warnings(run) == []
    # it ran where it lies, as a user starts it
    assert (tmp_path / "mine" / "counts.json").exists()
    assert b"Generating hidden states: 100%" in run.output.read_bytes()

    report = _verify(run, tmp_path / "report.json")
    assert (report.ok, report.files, report.bad_files) == (True, COUNT, ())
    assert all(check.ok for check in report.checked)

    again = own_script.make_run(tmp_path / "0002", asked)
    assert tiny.work(again) == 0
    assert b"resuming" not in again.output.read_bytes()  # nothing was left to do
    assert tiny.progress(again).done == COUNT
    assert tiny.finished(again)
