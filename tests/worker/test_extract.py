"""Whole runs of the worker as a process, on tiny random models, compared with transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.protocol.events import Load, Plan, Stage, Wrote
from eagle3_agent.protocol.values import OutputFormat, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import tiny

#: Seconds: each test may start several processes that import torch, on cores that others use too.
pytestmark = [pytest.mark.worker, pytest.mark.timeout(600)]

#: Independent of hooks: transformers' own list of hidden states.
_COMPARE = """
import json, sys, torch
from transformers import AutoModelForCausalLM

def look(path):
    if path.endswith(".pt"):
        body = torch.load(path, mmap=True, weights_only=True)
        assert sorted(body) == ["hidden_states", "input_ids", "loss_mask"]
        mask = body["loss_mask"]
        assert mask.dtype == torch.long and mask.shape == body["input_ids"].shape
        return body["input_ids"], body["hidden_states"]
    from safetensors.torch import load_file
    body = load_file(path)
    assert sorted(body) == ["hidden_states", "token_ids"]
    return body["token_ids"], body["hidden_states"].unbind(1)

found = []
for folder, output, layers, names in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    worst, seen = 0.0, []
    for name in names:
        ids, states = look(f"{output}/{name}")
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
    found.append([worst, seen])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Case:
    kind: tiny.Kind
    layers: tuple[int, ...]
    form: OutputFormat
    dtype: str
    tolerance: float

    @property
    def names(self) -> list[str]:
        if self.form == "speculators-pt":
            return [f"data_{i}.pt" for i in range(COUNT)]
        return [f"hs_{i}.safetensors" for i in range(COUNT)]


COUNT = 5

CASES = (
    Case("llama", (1, 3, 5), "speculators-pt", "torch.float32", 1e-5),
    Case("llama", (5, 1, 1, 3), "safetensors", "torch.float32", 1e-5),
    Case("llama-bf16", (1, 3, 5), "speculators-pt", "torch.bfloat16", 4e-2),
    Case("qwen3", (0, 4), "speculators-pt", "torch.float32", 1e-5),
    Case("moe", (2, 5), "speculators-pt", "torch.float32", 1e-5),
)


@dataclass(frozen=True)
class Outcome:
    status: int
    run: RunFolder
    worst: float
    seen: list[Any]


@pytest.fixture(scope="module")
def outcomes(
    python: Path, models: dict[tiny.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[Case, Outcome]:
    """A run for every case, and all of them compared in one process."""
    root = tmp_path_factory.mktemp("cases")
    data = tiny.write_jsonl(root / "data.jsonl", tiny.rows(COUNT))
    runs = []
    for number, case in enumerate(CASES):
        output = root / "out" / str(number)
        asked = tiny.profile(
            python, models[case.kind], data, output, layers=case.layers, kind=case.form
        )
        run = tiny.make_run(root / f"000{number}", asked)
        runs.append((tiny.work(run), run))
    asked_for = [
        [str(models[case.kind]), run.record().profile.output.dir, case.layers, case.names]
        for case, (_, run) in zip(CASES, runs)
    ]
    found = json.loads(tiny.run_python(python, _COMPARE, json.dumps(asked_for)))
    return {
        case: Outcome(status, run, worst, seen)
        for case, (status, run), (worst, seen) in zip(CASES, runs, found)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.form}")
def test_states_are_those_after_the_asked_layers(outcomes: dict[Case, Outcome], case: Case) -> None:
    found = outcomes[case]
    assert found.status == 0
    assert tiny.finished(found.run)
    output = Path(found.run.record().profile.output.dir)
    names = {p.name for p in output.iterdir()}
    assert {name for name in names if name.startswith(("data_", "hs_", "."))} - {
        "data_config.json"
    } == set(case.names)
    assert {"eagle3.json", "manifest.jsonl"} <= names
    assert found.worst <= case.tolerance
    assert found.seen == [
        [
            row["input_ids"],
            len(case.layers),
            case.dtype,
            [len(row["input_ids"]), tiny.HIDDEN],
        ]
        for row in tiny.rows(COUNT)
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
    assert len({check.index for check in verdict.checked}) == 4


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
    outputs = []
    for kind in ("llama", "qwen3"):
        outputs.append(str(tmp_path / kind))
        asked = tiny.profile(python, models[kind], path, tmp_path / kind)
        run = tiny.make_run(tmp_path / f"run-{kind}", asked)
        assert tiny.work(run) == 0
        assert tiny.skipped(run) == {2: "line 3: no assistant turn"}
    learned = json.loads(tiny.run_python(python, _LEARNED, *outputs))
    texts = [[_text(ids) for ids in sample] for sample in learned]
    assert texts == [["gut, 谢谢<|im_end|>bye<|im_end|>", "b<|im_end|>"]] * 2


#: The ids under each sample's loss mask, for each folder.
_LEARNED = """
import json, sys, torch
made = []
for folder in sys.argv[1:]:
    bodies = [torch.load(f"{folder}/data_{i}.pt", mmap=True, weights_only=True) for i in (0, 1)]
    made.append([b["input_ids"][b["loss_mask"].bool()].tolist() for b in bodies])
print(json.dumps(made))
"""


def _text(ids: list[int]) -> str:
    """Undo the byte-level alphabet: GPT-2's printable stand-ins, sorted by code point."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {b: chr(b) for b in printable}
    spare = (chr(256 + n) for n in range(256))
    stand_in |= {b: next(spare) for b in range(256) if b not in stand_in}
    alphabet = sorted(stand_in, key=stand_in.__getitem__)
    special = {256: b"<|im_start|>", 257: b"<|im_end|>"}
    return b"".join(special.get(i) or bytes([alphabet[i]]) for i in ids).decode()
