"""What lies beside the samples of a run that is done: for each format, the same after a resume."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import clearing
from eagle3_agent.protocol.events import Note
from eagle3_agent.protocol.values import OutputFormat
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import extras
from support import needs, tiny

LENGTH = 30


def rows() -> list[Any]:
    made: list[Any] = tiny.rows(5)
    return [*made[:2], b"broken", *made[2:]]


def run(
    folder: Path, python: Path, model: Path, kind: OutputFormat = "speculators-pt", name: str = "1"
) -> RunFolder:
    data = folder / "d.jsonl"
    if not data.exists():
        tiny.write_jsonl(data, rows())
    asked = tiny.profile(python, model, data, folder / "out", kind=kind, seq_length=LENGTH)
    made = tiny.make_run(folder / name, asked)
    assert tiny.work(made) == 0, made.output.read_text()
    assert tiny.finished(made)
    return made


def extra(out: Path) -> dict[str, bytes]:
    """Name -> content of everything that is no sample, no marker and no record of both."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
        and path.suffix not in (".pt", ".safetensors")
        and path.name not in ("eagle3.json", "manifest.jsonl", extras.RECORD)
    }


def recorded(out: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((out / extras.RECORD).read_bytes())["files"]
    return files


def described(out: Path, *names: str) -> dict[str, Any]:
    bodies = {name: (out / name).read_bytes() for name in names}
    return {
        name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in bodies.items()
    }


def clear(out: Path, confirm: bool = True) -> clearing.Clearing:
    run = json.loads((out / "eagle3.json").read_bytes())["run"]
    return clearing.clear(out, frozenset({run}), confirm)


def warnings(of: RunFolder) -> list[str]:
    return [e.text for e in tiny.events(of) if isinstance(e, Note) and e.level == "warning"]


def test_the_pt_form_has_lengths_config_and_counts(
    tmp_path: Path, python: Path, models: dict[tiny.Kind, Path]
) -> None:
    done = run(tmp_path, python, models["llama"])
    out = tmp_path / "out"
    assert warnings(done) == []
    assert sorted(extra(out)) == [extras.CONFIG, extras.LENGTHS, extras.COUNTS]
    samples = {i: row for i, row in enumerate(rows()) if isinstance(row, dict)}
    lengths = {str(i): len(row["input_ids"][:LENGTH]) for i, row in samples.items()}
    assert json.loads((out / extras.LENGTHS).read_bytes()) == lengths
    config = json.loads((out / extras.CONFIG).read_bytes())
    assert config["version"] == "2.0"
    assert config["hidden_states"]["layer_ids"] == [1, 3, 5]
    assert config["data"]["num_samples"] == 5
    assert config["model"]["hidden_size"] == tiny.HIDDEN
    assert [p.name for p in sorted(out.rglob("*")) if p.name.endswith("pt")] == [
        f"data_{i}.pt" for i in sorted(samples)
    ], "a trainer takes every name that ends in pt"
    counts = tiny.run_python(
        python,
        "import sys, json, torch; print(json.dumps(torch.load(sys.argv[1], weights_only=True)))",
        str(out / extras.COUNTS),
    )
    wanted = Counter(
        token
        for row in samples.values()
        for token in compress(row["input_ids"][:LENGTH], row["loss_mask"])
    )
    assert {int(k): v for k, v in json.loads(counts).items()} == wanted

    assert recorded(out) == described(out, extras.CONFIG, extras.LENGTHS, extras.COUNTS)
    (out / "notes.txt").write_text("the user's")
    sizes = [
        p.stat().st_size for p in out.iterdir() if p.name in recorded(out) or p.suffix == ".pt"
    ]
    assert clear(out) == clearing.Clearing(5 + 3, sum(sizes), ("notes.txt",))
    assert [p.name for p in out.iterdir()] == ["notes.txt"]


def test_a_resumed_run_has_the_same_bytes(
    tmp_path: Path, python: Path, models: dict[tiny.Kind, Path]
) -> None:
    run(tmp_path, python, models["llama"])
    out = tmp_path / "out"
    whole = extra(out)
    (out / "data_1.pt").unlink()
    (out / extras.LENGTHS).write_bytes(b"{")
    (out / f".{extras.COUNTS}.1.partial").write_bytes(b"left by a killed attempt")
    run(tmp_path, python, models["llama"], name="2")
    assert extra(out) == whole
    assert recorded(out) == described(out, *whole)

    # and so has another run, elsewhere and later
    (out / extras.CONFIG).unlink()
    out.rename(tmp_path / "first")
    run(tmp_path, python, models["llama"], name="3")
    assert extra(out) == whole


def test_what_cannot_be_written_is_said_and_costs_no_sample(
    tmp_path: Path, python: Path, models: dict[tiny.Kind, Path]
) -> None:
    (tmp_path / "out" / extras.LENGTHS).mkdir(parents=True)
    done = run(tmp_path, python, models["llama"])
    (text,) = warnings(done)
    assert extras.LENGTHS in text
    assert text.endswith("could not be written (Is a directory): resume the run")
    assert len(list((tmp_path / "out").glob("data_*.pt"))) == 5
    assert not (tmp_path / "out" / extras.RECORD).exists()


@pytest.mark.vllm
def test_the_safetensors_form_has_a_prepared_dataset_of_the_same_rows(
    tmp_path: Path, models: dict[tiny.Kind, Path]
) -> None:
    python = needs.vllm_python()
    done = run(tmp_path, python, models["llama"], "safetensors")
    out = tmp_path / "out"
    assert warnings(done) == []
    whole = extra(out)
    (arrow,) = (name for name in whole if name.endswith(".arrow"))
    assert sorted(whole) == [arrow, "prepared/dataset_info.json", "prepared/state.json"]
    counts = (out / "prepared/token_freq.pt").read_bytes()
    found = tiny.run_python(
        python,
        "import sys, json; from datasets import load_from_disk; d = load_from_disk(sys.argv[1])\n"
        "rows = [{k: v.tolist() for k, v in row.items()} for row in d]\n"
        "print(json.dumps(rows))",
        str(out / "prepared"),
    )
    empty: dict[str, Any] = {"input_ids": [], "loss_mask": [], "seq_len": 0}
    assert json.loads(found) == [
        {
            "input_ids": row["input_ids"][:LENGTH],
            "loss_mask": row["loss_mask"][:LENGTH],
            "seq_len": len(row["input_ids"][:LENGTH]),
        }
        if isinstance(row, dict)
        else empty
        for row in rows()
    ]

    # and the worker reads it like any prepared dataset
    again = tmp_path / "again"
    again.mkdir()
    asked = tiny.profile(python, models["llama"], out / "prepared", again / "out")
    second = tiny.make_run(again / "1", asked)
    assert tiny.work(second) == 0, second.output.read_text()
    assert tiny.skipped(second) == {2: "row 3: empty: no token"}

    (out / "hs_1.safetensors").unlink()
    earlier = "prepared/data-0123456789abcdef.arrow"
    (out / earlier).write_bytes(b"of an earlier attempt")
    files = {**recorded(out), **described(out, earlier)}
    (out / extras.RECORD).write_text(json.dumps({"files": files}))
    run(tmp_path, python, models["llama"], "safetensors", name="2")
    assert extra(out) == whole
    assert (out / "prepared/token_freq.pt").read_bytes() == counts
    assert recorded(out) == described(out, *whole, "prepared/token_freq.pt")

    cleared = clear(out)
    assert (cleared.files, cleared.kept) == (5 + 4, ())
    assert list(out.iterdir()) == []


@pytest.mark.vllm
def test_a_dataset_of_the_users_is_not_written_over(
    tmp_path: Path, models: dict[tiny.Kind, Path]
) -> None:
    prepared = tmp_path / "out" / "prepared"
    prepared.mkdir(parents=True)
    theirs = {
        "state.json": b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}',
        "data-00000-of-00001.arrow": b"rows",
    }
    for name, body in theirs.items():
        (prepared / name).write_bytes(body)
    done = run(tmp_path, needs.vllm_python(), models["llama"], "safetensors")
    (text,) = warnings(done)
    assert "prepared was not written, since it holds a dataset that no run wrote" in text
    assert {path.name: path.read_bytes() for path in prepared.iterdir()} == theirs
    assert clear(tmp_path / "out").kept == ("prepared",)
    assert {path.name: path.read_bytes() for path in prepared.iterdir()} == theirs


def test_without_pyarrow_the_run_says_what_is_missing(
    tmp_path: Path, python: Path, models: dict[tiny.Kind, Path]
) -> None:
    bare = "import sys; sys.modules['pyarrow'] = None\n"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(bare)
    data = tiny.write_jsonl(tmp_path / "d.jsonl", rows())
    asked = tiny.profile(python, models["llama"], data, tmp_path / "out", kind="safetensors")
    made = tiny.make_run(tmp_path / "1", asked)
    assert tiny.work(made, wrap=["env", f"PYTHONPATH={tmp_path / 'hidden'}:{tiny.AGENT}"]) == 0
    (text,) = warnings(made)
    assert "prepared was not written, and training needs its loss masks: install pyarrow" in text
