"""What a run refuses, skips or fails on: one sentence each, and nothing half-written."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.values import Profile, VerifyReport
from eagle3_agent.runs import RunFolder, read_value
from support import tiny

pytestmark = pytest.mark.worker


@pytest.fixture
def asked(python: Path, models: dict[tiny.Kind, Path], tmp_path: Path) -> Profile:
    data = tiny.write_jsonl(tmp_path / "data.jsonl", tiny.rows(4))
    return tiny.profile(python, models["llama"], data, tmp_path / "out")


def _refused(tmp_path: Path, asked: Profile) -> str:
    """The one sentence of a run that fails before it writes anything."""
    run = tiny.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 1
    error = tiny.failure(run).error
    assert not tiny.finished(run)
    assert b"Traceback" not in run.output.read_bytes()
    assert error.message in run.output.read_text()
    return f"{error.type}: {error.message}"


def test_bad_rows_are_skipped_with_their_reason(asked: Profile, tmp_path: Path) -> None:
    good = tiny.rows(3)
    items = [
        good[0],
        b'{"input_ids": [1, 2',
        {"input_ids": []},
        {},
        {"input_ids": [1, tiny.VOCAB]},
        {"input_ids": [1, -1]},
        {"input_ids": [1, 2], "loss_mask": [1]},
        {"input_ids": [1, 2], "loss_mask": [1, 2]},
        good[1],
        {"messages": []},
        {"messages": [{"role": "user", "content": "x"}]},
        b"\xff\xfe",
        b"[1, 2]",
        {"input_ids": "abc"},
        b"",
        good[2],
    ]
    tiny.write_jsonl(Path(asked.data.path), items)
    run = tiny.make_run(tmp_path / "0001", asked)

    assert tiny.work(run) == 0

    assert tiny.skipped(run) == {
        1: "line 2: not JSON: Expecting ',' delimiter at column 20",
        2: "line 3: empty: no token",
        3: "line 4: neither input_ids, messages nor conversations is a list (keys: )",
        4: "line 5: token id 320 is outside the vocabulary of 320",
        5: "line 6: token id -1 is outside the vocabulary of 320",
        6: "line 7: loss_mask has 1 entries, input_ids 2",
        7: "line 8: loss_mask is no list of 0 and 1",
        9: "line 10: empty conversation",
        10: "line 11: no assistant turn",
        11: "line 12: not UTF-8 at byte 1",
        12: "line 13: not an object but a list",
        13: "line 14: input_ids is no list of integers",
    }
    last = tiny.progress(run)
    assert (last.done, last.skipped, last.total) == (3, 12, 15)
    assert tiny.finished(run)
    written = sorted(p.name for p in (tmp_path / "out").glob("data_*.pt"))
    assert written == ["data_0.pt", "data_14.pt", "data_8.pt"]


def test_states_that_are_not_finite_are_not_written(
    models: dict[tiny.Kind, Path], asked: Profile, tmp_path: Path
) -> None:
    broken = replace(asked, model=replace(asked.model, path=str(models["nan"])))
    run = tiny.make_run(tmp_path / "0001", broken)
    assert tiny.work(run) == 0
    # layer 3 overflows: of the layers 1, 3, 5 it is the first to show it
    reason = "the state of token 0 after layer 3 holds NaN or infinity"
    assert tiny.skipped(run) == dict.fromkeys(range(4), reason)
    assert tiny.progress(run).skipped == 4
    assert not [p.name for p in (tmp_path / "out").iterdir() if "data_0" in p.name]
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_an_empty_file_and_a_file_without_a_good_row(asked: Profile, tmp_path: Path) -> None:
    data = Path(asked.data.path)
    data.write_bytes(b"\n\n")
    assert _refused(tmp_path, asked) == (
        f"DataError: {data} holds no sample: data.path must name conversations or token ids"
    )
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_is_refused_before_the_load(asked: Profile, tmp_path: Path) -> None:
    model = asked.model.path
    beyond = replace(asked, capture=replace(asked.capture, layers=(2, 99)))
    text = _refused(tmp_path, beyond)
    assert text == f"ModelError: capture.layers = [2, 99]: {model} has the layers 0 to 5"
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_output_folder_should_be(asked: Profile, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    text = _refused(tmp_path, asked)
    assert text.startswith(f"OutputError: {tmp_path / 'out'} cannot be used (")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_of_another_run_is_left_alone(asked: Profile, tmp_path: Path) -> None:
    run = tiny.make_run(tmp_path / "0000", asked)
    assert tiny.work(run) == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    other = replace(asked, capture=replace(asked.capture, layers=(0, 3)))
    text = _refused(tmp_path, other)
    assert text == (
        f"OutputError: {tmp_path / 'out'} holds samples of run 0000 that differ in layers "
        "([1, 3, 5] there, [0, 3] asked): choose another output.dir or clear that run"
    )
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_another_process_writes_into(asked: Profile, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        text = _refused(tmp_path, asked)
    finally:
        os.close(held)
    assert text.startswith(f"OutputError: another process writes into {tmp_path / 'out'}")


_MODELING = """
from transformers import LlamaForCausalLM, LlamaConfig
class Odd(LlamaForCausalLM):
    config_class = LlamaConfig
    def __init__(self, config):
        super().__init__(config)
        self.model.layers[2].register_forward_hook(self.check)
    def check(self, module, inputs, output):
        assert inputs is None
"""


def test_a_bare_assertion_deep_in_a_model_says_where_it_stands(
    models: dict[tiny.Kind, Path], asked: Profile, tmp_path: Path
) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    for file in models["llama"].iterdir():
        (odd / file.name).write_bytes(file.read_bytes())
    config = json.loads((odd / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_odd.Odd"}
    (odd / "config.json").write_text(json.dumps(config))
    (odd / "modeling_odd.py").write_text(_MODELING)
    model = replace(asked.model, path=str(odd), trust_remote_code=True)
    run = tiny.make_run(tmp_path / "0001", replace(asked, model=model))

    assert tiny.work(run) == 1

    error = tiny.failure(run).error
    assert (error.type, error.message) == ("AssertionError", "")
    assert error.where is not None
    assert error.where.file.endswith("modeling_odd.py")
    assert (error.where.function, error.where.source) == ("check", "assert inputs is None")
    assert "assert inputs is None" in error.traceback
    assert "assert inputs is None" in run.output.read_text()


def _shift(run: RunFolder, layers: tuple[int, ...]) -> None:
    """Claim that the files hold other layers than they do; every checksum stays right."""
    tiny.change_profile(run, lambda p: replace(p, capture=replace(p.capture, layers=layers)))
    marker = Path(run.record().profile.output.dir) / "eagle3.json"
    body = json.loads(marker.read_text())
    body["layers"] = list(layers)
    marker.write_text(json.dumps(body))


def _verify(run: RunFolder, samples: int) -> VerifyReport:
    report = run.path / "report.json"
    arguments = ("verify", str(run.path), "--samples", str(samples), "--report", str(report))
    assert tiny.work(run, *arguments) == 0, run.output.read_text()
    return read_value(report, VerifyReport)


def test_verify_finds_layers_that_are_off_by_one(asked: Profile, tmp_path: Path) -> None:
    run = tiny.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 0
    right = _verify(run, 4)
    assert right.ok
    assert all(c.worst_relative_error is not None for c in right.checked)
    _shift(run, (0, 2, 4))
    wrong = _verify(run, 4)
    assert not wrong.ok
    assert wrong.bad_files == ()
    for check in wrong.checked:
        assert not check.ok
        for layer in (0, 2, 4):
            assert f"layer {layer}: median token error" in check.why


def test_verify_names_every_bad_file(asked: Profile, tmp_path: Path) -> None:
    run = tiny.make_run(tmp_path / "0001", asked)
    assert tiny.work(run) == 0
    output = tmp_path / "out"
    (output / "data_1.pt").unlink()
    body = bytearray((output / "data_2.pt").read_bytes())
    body[-300] ^= 1
    (output / "data_2.pt").write_bytes(bytes(body))
    (output / "data_3.pt").write_bytes(b"")
    found = _verify(run, 0)
    assert not found.ok
    assert found.bad_files[:2] == (
        "data_1.pt: missing",
        "data_2.pt: its checksum differs",
    )
    assert found.bad_files[2].startswith("data_3.pt: 0 bytes, the manifest says ")


def test_verify_without_outputs_says_so(asked: Profile, tmp_path: Path) -> None:
    run = tiny.make_run(tmp_path / "0001", asked)
    report = tmp_path / "report.json"
    assert tiny.work(run, "verify", str(run.path), "--report", str(report)) == 1
    last = run.output.read_text().splitlines()[-1]
    assert last == f"{tmp_path / 'out'} holds no sample of this run: nothing to verify"
    assert not report.exists()
