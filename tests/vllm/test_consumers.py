"""What the worker wrote, taken by the libraries that train from it: read whole, and trained on.

One run in each format, with rows that are cut and rows that are skipped, is what all of them get.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.protocol.values import OutputFormat
from support import needs, tiny
from support.vllm_env import run_script

LAYERS = (1, 3, 4, 5)
LENGTH = 30
#: What the draft models of the scripts know of the vocabulary.
DRAFT_VOCAB = 64


def rows() -> list[dict[str, Any]]:
    """Eight rows, some longer than LENGTH; the third cannot be used."""
    made = tiny.rows(8)
    made[2] = {"input_ids": [1, tiny.VOCAB]}
    return made


def written(folder: Path, kind: OutputFormat) -> tuple[Path, Path]:
    """(the output folder, the model) of a run that is done."""
    python = needs.vllm_python("0.16")
    model = tiny.build(python, folder, ("llama",))["llama"]
    data = tiny.write_jsonl(folder / "d.jsonl", rows())
    asked = tiny.profile(
        python, model, data, folder / "out", layers=LAYERS, kind=kind, seq_length=LENGTH
    )
    run = tiny.make_run(folder / "0001", asked)
    assert tiny.work(run) == 0, run.output.read_text()
    assert list(tiny.skipped(run)) == [2]
    return folder / "out", model


@pytest.fixture(scope="module")
def pt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written(tmp_path_factory.mktemp("pt"), "speculators-pt")


@pytest.fixture(scope="module")
def safetensors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written(tmp_path_factory.mktemp("safetensors"), "safetensors")


def usable() -> dict[int, dict[str, Any]]:
    """Index -> the row as it was captured."""
    return {
        i: {key: values[:LENGTH] for key, values in row.items()}
        for i, row in enumerate(rows())
        if i != 2
    }


def counted() -> Counter[int]:
    return Counter(
        token for row in usable().values() for token in compress(row["input_ids"], row["loss_mask"])
    )


def most_learned() -> list[int]:
    counts = counted()
    return sorted(sorted(counts, key=lambda token: (-counts[token], token))[:DRAFT_VOCAB])


def check_losses(losses: list[float]) -> None:
    assert all(map(math.isfinite, losses)), losses
    assert losses[-1] < 0.9 * losses[0], losses


#: Compiling the draft model takes longer than training it.
EAGER = {"TORCH_COMPILE_DISABLE": "1"}


@pytest.mark.parametrize("library", ["0.3", "0.4"])
def test_the_pt_trainers_learn_from_the_folder(
    pt: tuple[Path, Path], tmp_path: Path, library: str
) -> None:
    if library == "0.4":
        needs.vllm_python("0.16", "0.4")
    data, model = pt
    found = run_script(
        "consume_0_3.py",
        tmp_path,
        str(data),
        str(model),
        variables=EAGER,
        speculators="0.4" if library == "0.4" else None,
    )
    assert found["files"] == [f"data_{i}.pt" for i in usable()], "and nothing else as a sample"
    if library == "0.4":
        lengths = {f"data_{i}.pt": len(row["input_ids"]) for i, row in usable().items()}
        assert found["lengths"] == lengths, "exact, from sample_lengths.json"
    assert {int(k): v for k, v in found["counts"].items()} == counted()
    # the library drops the first position of each sample
    assert found["learned"] == sum(sum(row["loss_mask"][1:]) for row in usable().values())
    assert found["kept"] == most_learned()
    check_losses(found["losses"])


def test_the_safetensors_trainer_learns_from_the_folder(
    safetensors: tuple[Path, Path], tmp_path: Path
) -> None:
    needs.vllm_python("0.32", "0.9")
    data, model = safetensors
    found = run_script(
        "consume_0_9.py",
        tmp_path,
        str(data),
        str(model),
        variables=EAGER,
        version="0.32",
        speculators="0.9",
    )
    assert found["rows"] == 8, "row i is for hs_i.safetensors, also after a hole"
    assert found["missing"] == [2]
    assert found["lengths"] == [
        len(usable()[i]["input_ids"]) if i in usable() else 0 for i in range(8)
    ]
    assert found["learned"] == sum(sum(row["loss_mask"]) for row in usable().values())
    assert found["kept"] == most_learned()
    check_losses(found["losses"])
