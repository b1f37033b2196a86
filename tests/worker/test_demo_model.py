"""The demo's real model: 30 layers, bfloat16, tokens with values thousands of times the others'."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.values import VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from eagle3_console import demo
from support import tiny

pytestmark = pytest.mark.worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def model(python: Path) -> Path:
    """Made by ``make demo-env``, like the interpreter."""
    found = demo.files().model
    if not (found / "config.json").exists():
        pytest.skip("the demo's model is not there: run `make demo-env`")
    return found


def _verify(run: RunFolder) -> VerifyReport:
    report = run.path / "report.json"
    arguments = ("verify", str(run.path), "--samples", "2", "--report", str(report))
    assert tiny.work(run, *arguments) == 0, run.output.read_text()
    return read_value(report, VerifyReport)


def test_verify_passes_and_finds_every_layer_that_is_off_by_one(
    python: Path, model: Path, tmp_path: Path
) -> None:
    data = ROOT / "profiles" / "demo-conversations.jsonl"
    layers = (2, 15, 27, 29)
    asked = tiny.profile(python, model, data, tmp_path / "out", layers=layers, max_samples=3)
    run = tiny.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 0, run.output.read_text()
    right = _verify(run)
    assert right.ok, right
    assert (right.dtype, right.files, len(right.checked)) == ("bfloat16", 3, 2)
    assert all(0 < (c.worst_relative_error or 0) < 0.03 for c in right.checked)

    # claim the layers below: every checksum stays right, only the numbers are another layer's
    below = (1, 14, 26, 28)
    tiny.change_profile(run, lambda p: replace(p, capture=replace(p.capture, layers=below)))
    marker = tmp_path / "out" / "eagle3.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "layers": list(below)}))
    wrong = _verify(run)
    assert not wrong.ok
    for check in wrong.checked:
        for layer in below:
            assert f"layer {layer}: median token error" in check.why
