"""Every way in which an engine has captured wrong states, and the name that verify gives it.

Played on a tiny random model, layers 1, 3 and 5 of 6, in bfloat16, on samples of 1 to 61 tokens;
the reference is float32 and, in a second round, the checkpoint's own dtype.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import ReferenceDtype, VerifyReport
from support import tiny
from support.faults import Bug, Played, play, told

_LAYERS = (1, 3, 5)

_BUGS = {
    "off by one below": Bug(
        "s = [hs[l] for l in asked]",
        "wrong-layer",
        r"off by one layer: each holds the state one layer below \(layer 0, layer 2, layer 4 fit\)",
        _LAYERS,
    ),
    "off by two below, into the embedding": Bug(
        "s = [hs[l - 1] for l in asked]",
        "wrong-layer",
        r"off by 2 layers: .* \(the embedding, layer 1, layer 3 fit\)",
        _LAYERS,
    ),
    "off by one above": Bug(
        "s = [hs[l + 2] for l in asked[:2]] + s[2:]",
        "wrong-layer",
        "holds the state after layer 2",
        (1,),
    ),
    "one layer wrong": Bug("s[1] = hs[3]", "wrong-layer", "holds the state after layer 2", (3,)),
    "reversed order": Bug(
        "s = s[::-1]", "wrong-order", r"in the order \[5, 3, 1\], asked was \[1, 3, 5\]", (1, 5)
    ),
    "turned order": Bug(
        "s = s[1:] + s[:1]", "wrong-order", r"in the order \[3, 5, 1\], asked was", _LAYERS
    ),
    "a layer twice": Bug(
        "s[0] = s[1]", "repeated-layer", "layer 3 is repeated: .* layers 1 and 3", (1,)
    ),
    "after the final norm": Bug("s[2] = hs[-1]", "post-norm", "output of the final norm", (5,)),
    "rows a row late": Bug(
        "s = [torch.cat([x[:1], x[:-1]]) for x in s]",
        "shifted-rows",
        r"shifted by \+1: row t holds the state of token t-1, 1 late",
        _LAYERS,
        least=7,
    ),
    "rows two early": Bug(
        "s = [torch.cat([x[2:], 0 * x[:2]]) for x in s]",
        "shifted-rows",
        r"shifted by -2: row t holds the state of token t\+2, 2 early",
        _LAYERS,
        least=7,
    ),
    "rows turned in one layer": Bug(
        "s[1] = torch.roll(s[1], 5, 0)", "shifted-rows", r"shifted by \+5", (3,), least=24
    ),
    "rows of another sample": Bug(
        "s = [torch.cat([other[l + 1], s[i]])[:S] for i, l in enumerate(asked[:2])] + s[2:]",
        "other-sample",
        "every row is of sample",
        (1, 3),
    ),
    "second half of another sample, moved": Bug(
        "h = S // 2; s[0] = torch.cat([s[0][:h], other[2][: S - h]])",
        "other-sample",
        r"rows \d+ to \d+ of \d+ are of sample \d+, moved: row t is its row t-\d+",
        (1,),
        least=7,
    ),
    "every layer too small": Bug(
        "s = [0.4 * x for x in s]",
        "scale",
        "0.(4|399|401) times what it should be, the model's 1/routed_scaling_factor",
        _LAYERS,
    ),
    "one layer too large": Bug("s[1] = s[1] * 1.5", "scale", r"1\.(49|5|51) times", (3,)),
    "rows of unit length": Bug(
        "s[0] = s[0] / s[0].float().norm(dim=1, keepdim=True)",
        "scale",
        "a factor of its own, .* normalised",
        (1,),
        least=7,
    ),
    "tail of zeros": Bug(
        "s[2][-3:] = 0",
        "truncated",
        r"rows \d+ to \d+ of \d+ hold zeros: the states end after \d+ tokens",
        (5,),
        least=7,
    ),
    "tail copied": Bug(
        "s = [torch.cat([x[:-3], x[-4:-3].expand(3, -1)]) for x in s]",
        "truncated",
        r"rows \d+ to \d+ of \d+ are copies of row \d+: the states end after \d+ tokens",
        _LAYERS,
        least=7,
    ),
    "last rows missing": Bug(
        "s = [x[:-3] for x in s]",
        "truncated",
        r"\d+ rows for \d+ tokens: they are tokens 0 to \d+, the last 3 are missing",
        _LAYERS,
        least=7,
    ),
    "first rows missing": Bug(
        "s = [x[4:] for x in s]",
        "truncated",
        r"\d+ rows for \d+ tokens: they are tokens 4 to \d+, the first 4 are missing",
        _LAYERS,
        least=7,
    ),
    "noise": Bug(
        "s[1] = torch.randn(s[1].shape) * s[1].float().std()",
        "noise",
        "every row is like no state of this sample or its neighbours",
        (3,),
    ),
    "a row of noise": Bug(
        "s[1][2] = torch.randn(s[1].shape[1]) * s[1].float().std()",
        "noise",
        "row 2 of .* is like no state",
        (3,),
        least=7,
    ),
    "NaN": Bug("s[0][0] = float('nan')", "not-finite", "row 0 of .* holds NaN", (1,)),
    "all zeros": Bug("s[1] = 0 * s[1]", "zeros", "every state is zero", (3,)),
    "a row of zeros": Bug("s[1][3] = 0", "zeros", "row 3 of .* holds zeros", (3,), least=7),
    "two rows exchanged": Bug(
        "s[1][[2, 4]] = s[1][[4, 2]]",
        "moved-rows",
        "rows are exchanged: row 2 holds token 4, row 4 holds token 2",
        (3,),
        least=7,
    ),
    "a little noise on everything": Bug(
        "g = torch.randn_like(s[1].float()); x = s[1].float()\n"
        "s[1] = x + 0.35 * g * (x.norm(dim=1) / g.norm(dim=1))[:, None]",
        "inexact",
        r"near the right state and not equal \(cosine 0.9",
        (3,),
        least=7,
    ),
}

#: A trained model's final norm weighs its channels; a fresh one's is ones, which is a mere factor.
_OTHER_NORM = """
import sys, torch
from safetensors.torch import load_file, save_file
weights = load_file(sys.argv[1])
weights["model.norm.weight"] = (torch.rand(32) + 0.2).to(torch.bfloat16)
save_file(weights, sys.argv[1], {"format": "pt"})
"""

_TEXTS = [[(i * 31 + i * i * 7) % tiny.VOCAB for i in range(n)] for n in (1, 7, 40)]


@pytest.fixture(scope="module", params=["float32", "checkpoint"])
def played(
    request: pytest.FixtureRequest,
    python: Path,
    models: dict[tiny.Kind, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Played:
    root = tmp_path_factory.mktemp("faults")
    model = root / "model"
    shutil.copytree(models["llama-bf16"], model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "routed_scaling_factor": 2.5}))
    tiny.run_python(python, _OTHER_NORM, str(model / "model.safetensors"))
    dtype: ReferenceDtype = request.param
    return play(python, model, root / "run", _BUGS, _TEXTS, _LAYERS, dtype)


def test_right_states_pass(played: Played) -> None:
    assert played.right.ok, played.right
    assert {check.tokens for check in played.right.checked} == {len(ids) for ids in _TEXTS}
    assert all(check.ok and not check.faults for check in played.right.checked)


def test_nothing_is_said_of_sound_samples_among_broken_ones(played: Played) -> None:
    broken = {index for some in played.samples.values() for index in some}
    wrong = {check.index for check in played.wrong.checked if not check.ok}
    assert wrong <= broken
    assert len(played.wrong.checked) >= len(broken) + len(_TEXTS)
    assert not played.wrong.ok


@pytest.mark.parametrize("name", _BUGS)
def test_a_fault_is_named(name: str, played: Played) -> None:
    bug, found = _BUGS[name], told(played, name)
    assert found
    for check in found:
        assert not check["ok"], check
        fitting = [
            fault
            for fault in check["faults"]
            if fault["kind"] == bug.kind and re.search(bug.says, fault["text"])
        ]
        assert set(bug.layers) <= {layer for fault in fitting for layer in fault["layers"]}, check


_EXPERTS = """
import sys
from dataclasses import replace
from pathlib import Path
from eagle3_agent.protocol import dumps
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import verify
profile = RunFolder(Path(sys.argv[1])).record().profile
print(dumps([verify.verify(profile, verify.Asked(99, 0, d)) for d in ("float32", "checkpoint")]))
"""


def test_right_states_of_experts_in_bfloat16_pass(
    python: Path, models: dict[tiny.Kind, Path], tmp_path: Path
) -> None:
    rows = [*tiny.rows(8, length=48), *({"input_ids": ids} for ids in _TEXTS)]
    data = tiny.write_jsonl(tmp_path / "data.jsonl", rows)
    asked = tiny.profile(python, models["moe"], data, tmp_path / "out", layers=_LAYERS)
    run = tiny.make_run(
        tmp_path / "run", replace(asked, model=replace(asked.model, dtype="bfloat16"))
    )
    assert tiny.work(run) == 0, run.output.read_text()
    code = f"import sys; sys.path.insert(0, {str(tiny.AGENT)!r})\n{_EXPERTS}"
    made = json.loads(tiny.run_python(python, code, str(run.path)).splitlines()[-1])
    for report in (from_json(VerifyReport, value) for value in made):
        assert report.dtype == "bfloat16"
        assert report.reference_dtype == "float32"  # the checkpoint's own
        assert report.ok, [check.why for check in report.checked if not check.ok]
        assert len(report.checked) == 11
