"""The demo's real model: 30 layers, bfloat16, tokens with values thousands of times the others'."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.values import VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from eagle3_console import demo
from support import needs, tiny
from support.faults import Bug, Played, play, told

pytestmark = pytest.mark.worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def model(python: Path) -> Path:
    """Made by ``make demo-env``, like the interpreter."""
    found = demo.files().model
    if not (found / "config.json").exists():
        pytest.skip("the demo's model is not there: run `make demo-env`")
    return found


#: Ids of plain text and of chats, where each token stands in them, and whether text comes back.
_TOKENISE = """
import json, sys, transformers
made = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
found, back = [], []
for line in open(sys.argv[2], encoding="utf-8"):
    talk = json.loads(line)["conversations"]
    text = made.apply_chat_template(
        [{"role": m["role"], "content": m["content"]} for m in talk], tokenize=False
    )
    for given in (text, "  " + talk[0]["content"] + "\\n\\n\\t\\u8c22\\u8c22"):
        plain = made(given, add_special_tokens=False, return_offsets_mapping=True)
        found.append([given, plain["input_ids"], plain["offset_mapping"], made(given)["input_ids"]])
        back.append(made.decode(plain["input_ids"], clean_up_tokenization_spaces=False) == given)
print(json.dumps([transformers.__version__, all(back), found, made.special_tokens_map]))
"""


@pytest.mark.vllm
def test_old_and_new_transformers_tokenise_it_alike(python: Path, model: Path) -> None:
    data = ROOT / "profiles" / "demo-conversations.jsonl"
    pythons = (python, needs.vllm_python("0.32"))
    old, new = (
        json.loads(tiny.run_python(each, _TOKENISE, str(model), str(data)).splitlines()[-1])
        for each in pythons
    )
    assert (old[0][0], new[0][0]) == ("4", "5"), "one release before and one after the change"
    assert old[1]
    assert new[1]
    assert len(old[2]) == 2 * len(data.read_text().splitlines())
    assert old[2:] == new[2:]


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


_LAYERS = (2, 15, 27, 29)

_BUGS = {
    "off by one below": Bug(
        "s = [hs[l] for l in asked]",
        "wrong-layer",
        "off by one layer: each holds the state one layer below",
        _LAYERS,
    ),
    "the last after the norm": Bug("s[3] = hs[-1]", "post-norm", "output of the final", (29,)),
    "reversed order": Bug(
        "s = s[::-1]", "wrong-order", r"in the order \[29, 27, 15, 2\], asked was", (2, 29)
    ),
    "a layer twice": Bug("s[0] = s[2]", "repeated-layer", "layer 27 is repeated", (2,)),
    "rows a row late": Bug(
        "s = [torch.cat([x[:1], x[:-1]]) for x in s]",
        "shifted-rows",
        r"shifted by \+1: row t holds the state of token t-1",
        _LAYERS,
        least=8,
    ),
    "rows of another sample": Bug(
        "s = [torch.cat([other[l + 1], x])[:S] for l, x in zip(asked[:2], s)] + s[2:]",
        "other-sample",
        "of sample",
        (2, 15),
        least=8,
    ),
    # a single token's own rounding moves its factor by up to 0.12 of it
    "every layer too small": Bug(
        "s = [0.4 * x for x in s]", "scale", r"is 0\.(3[5-9]|4)\d* times", _LAYERS
    ),
    "tail of zeros": Bug(
        "s[1][-3:] = 0", "truncated", "hold zeros: the states end after", (15,), least=8
    ),
    "tail copied": Bug(
        "s[1][-3:] = s[1][-4].clone()", "truncated", "copies of row", (15,), least=8
    ),
    "noise": Bug(
        "s[1] = torch.randn(s[1].shape) * s[1].float().std()", "noise", "like no state", (15,)
    ),
}


@pytest.fixture(scope="module")
def played(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    words = [(i * 7919 + i * i * 31) % 40000 + 100 for i in range(8)]
    talk = "The quick brown fox jumps over the lazy dog, and then it rests."
    code = "import sys, transformers as t; k = t.AutoTokenizer.from_pretrained(sys.argv[1])\n"
    ids = tiny.run_python(python, f"{code}print(k(sys.argv[2] * 2)['input_ids'])", str(model), talk)
    texts = [[101], words, json.loads(ids.splitlines()[-1])]
    root = tmp_path_factory.mktemp("faults") / "run"
    return play(python, model, root, _BUGS, texts, _LAYERS)


def test_right_states_of_every_length_pass(played: Played) -> None:
    assert played.right.ok, [c for c in played.right.checked if not c.ok]


@pytest.mark.parametrize("name", _BUGS)
def test_a_fault_is_named(name: str, played: Played) -> None:
    bug, found = _BUGS[name], told(played, name)
    assert found
    for check in found:
        fitting = [
            fault
            for fault in check["faults"]
            if fault["kind"] == bug.kind and re.search(bug.says, fault["text"])
        ]
        assert set(bug.layers) <= {layer for fault in fitting for layer in fault["layers"]}, check
