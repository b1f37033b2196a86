"""What verify says of a real model's states when there is no room to compute them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import Substitute, VerifyReport
from eagle3_console import demo
from support import tiny

pytestmark = pytest.mark.worker

ROOT = Path(__file__).parents[2]

#: Done to every sample, ``s`` being its states; the checks that then do not hold, with their words.
_BUGS: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": ("", {}),
    "rows a row late": (
        "s = [torch.cat([x[:1], x[:-1]]) for x in s]",
        {"next-token": "the rows are shifted by +1"},
    ),
    "one layer two early": (
        "s[1] = torch.cat([s[1][2:], s[1][-2:]])",
        {"aligned": "layer 15 stands -2 rows against layer 2"},
    ),
    "rows of another sample": (
        "s = [torch.cat([o, x])[: len(x)] for o, x in zip(other, s)]",
        {"next-token": "no better than chance"},
    ),
    "the last after the norm": (
        "s[3] = ends.normed(s[3]).bfloat16()",
        {"next-token": "it is in them already"},
    ),
    "noise in the last": (
        "s[3] = torch.randn_like(s[3])",
        {"next-token": "no better than chance", "same-prefix": "layer 29 of samples"},
    ),
    "noise in the middle": (
        "s[1] = torch.randn_like(s[1])",
        {"aligned": "layers 2 and 15 have nothing in common", "same-prefix": "layer 15 of"},
    ),
    "turned order": ("s = s[1:] + s[:1]", {"order": "it falls", "next-token": "chance"}),
    "a layer twice": ("s[0] = s[1]", {"distinct": "layers 2 and 15 of sample 0 are the same"}),
    "NaN": ("s[0][3] = float('nan')", {"finite": "sample 0 holds NaN or infinity"}),
    "rows of zeros": ("s[0][-3:] = 0", {"finite": "sample 0 holds rows of zeros"}),
}

_PLAY = """
import hashlib, json, shutil, sys
from dataclasses import replace
from pathlib import Path
import torch
from eagle3_agent.protocol import dumps
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import verify
from eagle3_agent.worker.verification import reference, weights
reference.available = lambda: 100 << 20
run, bugs = RunFolder(Path(sys.argv[1])), json.loads(sys.argv[2])
profile = run.record().profile
there = Path(profile.output.dir)
folder = there.with_name("broken")
profile = replace(profile, output=replace(profile.output, dir=str(folder)))
ends = weights.read(Path(profile.model.path))
torch.manual_seed(0)
said = {}
for name, code in bugs.items():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(there, folder)
    lines = {e["index"]: e for e in map(json.loads, (there / "manifest.jsonl").open())}
    right = {i: torch.load(there / e["file"]) for i, e in lines.items()}
    for index, line in lines.items():
        body = {**right[index]}
        other = right[(index + 1) % len(right)]["hidden_states"]
        own = [x.clone() for x in body["hidden_states"]]
        scope = dict(s=own, other=other, torch=torch, ends=ends)
        exec(code, scope)
        body["hidden_states"] = [x.contiguous().clone() for x in scope["s"]]
        path = folder / line["file"]
        torch.save(body, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        line.update(bytes=path.stat().st_size, sha256=digest)
    text = "".join(json.dumps(e) + "\\n" for e in lines.values())
    (folder / "manifest.jsonl").write_text(text)
    said[name] = verify.verify(profile, verify.Asked(3, 0), complete=True)
print(dumps(said))
"""


@pytest.fixture(scope="module")
def said(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, VerifyReport]:
    model = demo.files().model
    if not (model / "config.json").exists():
        pytest.skip("the demo's model is not there: run `make demo-env`")
    root = tmp_path_factory.mktemp("substitutes")
    data = ROOT / "profiles" / "demo-conversations.jsonl"
    layers = (2, 15, 27, 29)
    asked = tiny.profile(
        python, model, data, root / "out", layers=layers, max_samples=3, seq_length=128
    )
    run = tiny.make_run(root / "run", asked)
    assert tiny.work(run) == 0, run.output.read_text()
    codes = json.dumps({name: code for name, (code, _) in _BUGS.items()})
    play = f"import sys; sys.path.insert(0, {str(tiny.AGENT)!r})\n{_PLAY}"
    out = tiny.run_python(python, play, str(run.path), codes)
    made = json.loads(out.splitlines()[-1])
    return {name: from_json(VerifyReport, report) for name, report in made.items()}


def _by(report: VerifyReport) -> dict[str, Substitute]:
    return {check.check: check for check in report.instead}


def test_right_states_are_plausible_and_said_not_to_be_recomputed(
    said: dict[str, VerifyReport],
) -> None:
    report = said["nothing"]
    assert report.ok, report
    assert report.checked == ()
    assert report.not_recomputed.startswith("a second model needs ")
    assert "in float32 and " in report.not_recomputed
    assert report.verdict.startswith("not recomputed; checked instead: ")
    names = ["finite", "next-token", "aligned", "same-prefix", "distinct", "order", "growth"]
    assert [check.check for check in report.instead] == names
    assert {check.status for check in report.instead} == {"holds"}


@pytest.mark.parametrize("name", [name for name in _BUGS if name != "nothing"])
def test_what_can_be_seen_is_seen(name: str, said: dict[str, VerifyReport]) -> None:
    report, (_, expected) = said[name], _BUGS[name]
    assert not report.ok
    for check, words in expected.items():
        found = _by(report)[check]
        assert found.status == "fails", found
        assert words in found.saw
        assert check in report.verdict
