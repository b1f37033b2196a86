"""What the worker wrote, taken by the libraries that train from it: read whole, and trained on.

One run in each format, with rows that are cut and rows that are skipped, is what all of them get.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.protocol.values import OutputFormat
from eagle3_console import demo
from support import needs, tiny
from support.talks import TALKS
from support.vllm_env import Library, run_script

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


# ------------------------------------------------------------------ loss masks

#: A folder of real prompts (``turns`` and ``reference`` a line) to compare masks on as well.
PROMPTS = os.environ.get("EAGLE3_PROMPTS")

#: Templates that render a turn the same wherever it stands: what both sides can agree on.
STABLE = {"chatml": "<|im_end|>", "llama3": "<|eot|>", "deepseek": "<|end|>"}
ALIKE = ("one", "multi", "repeats", "html")


@pytest.fixture(scope="module")
def tokenizer() -> str:
    """The folder of a real model's; one of bytes where the demo is not made."""
    made = demo.files()  # before a test has a home of its own
    return str(made.model) if (made.root / "model.ready").exists() else "bytes"


def masks(folder: Path, tokenizer: str, library: Library | None) -> dict[str, Any]:
    return run_script(
        "masks.py",
        folder,
        tokenizer,
        *filter(None, [PROMPTS]),
        version="0.32" if library == "0.9" else "0.16",
        speculators=library,
    )


def alike(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the stable templates, the talks that everybody masks, and the real ones."""
    return {
        case: both
        for case, both in found.items()
        for template, talk in [case.split(": ")]
        if template in STABLE and (talk in ALIKE or talk not in TALKS)
    }


@pytest.mark.parametrize("library", [None, "0.4"])
def test_early_libraries_learn_the_same_answers_without_their_end(
    tmp_path: Path, tokenizer: str, library: Library | None
) -> None:
    needs.vllm_python("0.16", library)
    found = masks(tmp_path, tokenizer, library)
    compared = alike(found)
    assert len(compared) >= len(STABLE) * len(ALIKE)
    for case, both in compared.items():
        assert both["same_ids"], case
        mark = STABLE[case.split(": ")[0]]
        assert both["beyond"] == [mark] * len(both["ours"]), case
    # where the rules part, as docs/data.md says
    assert found["chatml: quotes"]["theirs"] == [["x", "No.", "Two."]], "a quoted header is learned"
    assert found["chatml: opens"]["theirs"] == [["Welcome.", "One."]]
    assert not found["chatml: tool"]["same_ids"], "the turn of a tool is left out of the tokens"
    if library is None:
        assert found["qwen3: thought"]["theirs"] == [[]], "and the row is kept"
        assert found["qwen3: multi"]["theirs"] == [["Two."]]
        assert found["marked: multi"]["theirs"] == [["One.", "Two."]]
    else:
        assert found["marked: multi"]["theirs"] == [found["marked: multi"]["ours"]]


def test_a_late_library_learns_the_same_answers_turn_by_turn(
    tmp_path: Path, tokenizer: str
) -> None:
    needs.vllm_python("0.32", "0.9")
    found = masks(tmp_path, tokenizer, "0.9")
    for case, both in alike(found).items():
        assert both["same_ids"], case
        if case == "deepseek: html":
            continue
        turns = [text.strip() for row in both["theirs"] for text in row]
        assert turns == [text.strip() for text in both["ours"]], case
    # where the rules part, as docs/data.md says
    if tokenizer != "bytes":  # whose end mark takes the line break along
        assert found["chatml: one"]["theirs"] == [["Hello, you.<|im_end|>\n"]]
    assert found["deepseek: html"]["theirs"][0] == ["div>x</div><|end|>"], "the first token is lost"
    assert found["promptless: one"]["theirs"][0][0].startswith("<|im_start|>assistant")
    thought = found["qwen3: thought"]
    assert thought["ours"][0] == "One.<|im_end|>", "as later turns see it"
    (first,) = thought["theirs"][0]
    assert first.strip() == "<think>\nhm\n</think>\n\nOne.<|im_end|>", "a row of its own"
    assert found["counting: one"]["theirs"].startswith("BoundaryUnstableError")
