"""Whole runs of the worker as a process, on tiny random models, compared with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.protocol.events import Load, Plan, Stage, Wrote
from eagle3_agent.protocol.values import OutputFormat, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import tiny

pytestmark = pytest.mark.worker

#: Independent of hooks: transformers' own list of hidden states.
_COMPARE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
layers, worst, seen = json.loads(sys.argv[3]), 0.0, []
for name in json.loads(sys.argv[4]):
    path = f"{sys.argv[2]}/{name}"
    if name.endswith(".pt"):
        body = torch.load(path, mmap=True, weights_only=True)
        ids, states, mask = body["input_ids"], body["hidden_states"], body["loss_mask"]
        assert sorted(body) == ["hidden_states", "input_ids", "loss_mask"]
        assert mask.dtype == torch.long and mask.shape == ids.shape
    else:
        from safetensors.torch import load_file
        body = load_file(path)
        assert sorted(body) == ["hidden_states", "token_ids"]
        ids, states = body["token_ids"], body["hidden_states"].unbind(1)
    assert ids.dtype == torch.long
    with torch.inference_mode():
        out = model(ids[None], output_hidden_states=True, use_cache=False)
        for layer, state in zip(layers, states):
            state = state.float()
            if layer == model.config.num_hidden_layers - 1:
                state = model.model.norm(state)  # the last entry is after the final norm
            want = out.hidden_states[layer + 1][0]
            worst = max(worst, ((state - want).abs().max() / want.abs().max()).item())
    seen.append([ids.tolist(), len(states), str(states[0].dtype), list(states[0].shape)])
print(json.dumps([worst, seen]))
"""


def compare(run: RunFolder, names: list[str]) -> tuple[float, list[Any]]:
    asked = run.record().profile
    layers = json.dumps(asked.capture.layers)
    text = tiny.run_python(
        Path(asked.host.python),
        _COMPARE,
        asked.model.path,
        asked.output.dir,
        layers,
        json.dumps(names),
    )
    worst, seen = json.loads(text)
    return worst, seen


@pytest.mark.parametrize(
    ("kind", "layers", "form", "dtype", "tolerance"),
    [
        ("llama", (1, 3, 5), "speculators-pt", "torch.float32", 1e-5),
        ("llama", (5, 1, 1, 3), "safetensors", "torch.float32", 1e-5),
        ("llama-bf16", (1, 3, 5), "speculators-pt", "torch.bfloat16", 4e-2),
        ("qwen3", (0, 4), "speculators-pt", "torch.float32", 1e-5),
        ("moe", (2, 5), "speculators-pt", "torch.float32", 1e-5),
    ],
)
def test_states_are_those_after_the_asked_layers(
    python: Path,
    models: dict[tiny.Kind, Path],
    tmp_path: Path,
    kind: tiny.Kind,
    layers: tuple[int, ...],
    form: OutputFormat,
    dtype: str,
    tolerance: float,
) -> None:
    data = tiny.rows(5)
    path = tiny.write_jsonl(tmp_path / "data.jsonl", data)
    output = tmp_path / "out" / "deeper"
    asked = tiny.profile(python, models[kind], path, output, layers=layers, kind=form)
    run = tiny.make_run(tmp_path / "0001", asked)

    assert tiny.work(run) == 0

    assert tiny.finished(run)
    suffix = "pt" if form == "speculators-pt" else "safetensors"
    prefix = "data" if form == "speculators-pt" else "hs"
    names = [f"{prefix}_{i}.{suffix}" for i in range(5)]
    assert sorted(p.name for p in output.iterdir()) == sorted(
        [*names, "eagle3.json", "manifest.jsonl"]
    )
    worst, seen = compare(run, names)
    assert worst <= tolerance
    assert seen == [
        [row["input_ids"], len(layers), dtype, [len(row["input_ids"]), tiny.HIDDEN]] for row in data
    ]


def test_events_tell_the_whole_run(
    python: Path, models: dict[tiny.Kind, Path], tmp_path: Path
) -> None:
    data = tiny.rows(30)
    path = tiny.write_jsonl(tmp_path / "data.jsonl", data)
    asked = tiny.profile(python, models["llama"], path, tmp_path / "out", seq_length=30)
    run = tiny.make_run(tmp_path / "0001", asked)
    tokens = sum(min(30, len(row["input_ids"])) for row in data)

    assert tiny.work(run) == 0

    told = tiny.events(run)
    stages = [(e.name, e.status) for e in told if isinstance(e, Stage)]
    assert stages == [
        (name, status)
        for name in ("load", "warmup", "extract", "write", "done")
        for status in ("start", "done")
    ]
    (planned,) = [e for e in told if isinstance(e, Plan)]
    assert (planned.total, planned.tokens, planned.reused) == (30, tokens, 0)
    assert planned.bytes == tokens * 3 * tiny.HIDDEN * 4
    assert [(e.done, e.total) for e in told if isinstance(e, Load)] == [(0, 1), (1, 1)]
    last = tiny.progress(run)
    sizes = sum(p.stat().st_size for p in (tmp_path / "out").glob("data_*.pt"))
    assert (last.done, last.total, last.skipped) == (30, 30, 0)
    assert (last.tokens, last.bytes, last.eta) == (tokens, sizes, 0.0)
    wrote = [e for e in told if isinstance(e, Wrote)]
    assert wrote[-1].layers == 3
    assert wrote[-1].shape == (wrote[-1].tokens, tiny.HIDDEN)
    extract = [e.t for e in told if isinstance(e, Stage) and e.name == "extract"]
    assert len(wrote) <= 4 * (extract[1] - extract[0]) + 2

    report = tmp_path / "report.json"
    assert tiny.work(run, "verify", str(run.path), "--samples", "4", "--report", str(report)) == 0
    verdict = read_value(report, VerifyReport)
    assert verdict.ok
    assert verdict.files == 30
    assert [check.index for check in verdict.checked] == [0, 10, 19, 29]


def test_conversations_are_masked_alike_by_marks_and_by_spans(
    python: Path, models: dict[tiny.Kind, Path], tmp_path: Path
) -> None:
    talk = [
        {"role": "user", "content": "Wie geht's? é"},
        {"role": "assistant", "content": "gut, 谢谢"},
        {"role": "user", "content": "ok"},
        {"role": "assistant", "content": "bye"},
    ]
    old = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    path = tiny.write_jsonl(
        tmp_path / "data.jsonl",
        [{"messages": talk}, {"conversations": old}, {"messages": talk[:1]}],
    )
    # llama's template marks nothing, qwen3's marks what the assistant generates
    masks = []
    for kind in ("llama", "qwen3"):
        output = tmp_path / kind
        asked = tiny.profile(python, models[kind], path, output)
        run = tiny.make_run(tmp_path / f"run-{kind}", asked)
        assert tiny.work(run) == 0
        assert tiny.skipped(run) == {2: "line 3: no assistant turn"}
        masks.append(_learned(python, output))
    assert masks[0] == masks[1] == [["gut, 谢谢<|im_end|>bye<|im_end|>"], ["b<|im_end|>"]]


def _learned(python: Path, output: Path) -> list[list[str]]:
    """The text under each sample's loss mask; a byte is a token here."""
    code = """
import json, sys, torch
made = []
for name in ("data_0.pt", "data_1.pt"):
    body = torch.load(f"{sys.argv[1]}/{name}", mmap=True, weights_only=True)
    made.append(body["input_ids"][body["loss_mask"].bool()].tolist())
print(json.dumps(made))
"""
    return [[_text(ids)] for ids in json.loads(tiny.run_python(python, code, str(output)))]


def _text(ids: list[int]) -> str:
    """Undo the byte-level alphabet: GPT-2's printable stand-ins, sorted by code point."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {b: chr(b) for b in printable}
    spare = (chr(256 + n) for n in range(256))
    stand_in |= {b: next(spare) for b in range(256) if b not in stand_in}
    alphabet = sorted(stand_in, key=stand_in.__getitem__)
    special = {256: b"<|im_start|>", 257: b"<|im_end|>"}
    return b"".join(special.get(i) or bytes([alphabet[i]]) for i in ids).decode()
