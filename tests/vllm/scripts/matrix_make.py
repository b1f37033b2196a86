"""matrix_make.py REPORT FOLDER SMOLLM2 TEXT: every checkpoint of the matrix, and its truth.

Each kind gets a folder: ``checkpoint.json`` (where it lies), ``rows.json`` and
``truth.safetensors``, one [layers, tokens, hidden] in float32 a row.  One process, and one
transformers, for all engines and releases of vLLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support import vllm_matrix as matrix
from support import vllm_special as special
from support import vllm_tiny as tiny

#: Longer than a step's budget, shorter, a single token, and as long as the model takes.
LENGTHS = (100, 17, 200, 1, 64, matrix.LENGTH, 33, 130, 5)


def main(report: str, folder: str, smollm2: str, text: str) -> None:
    found = {}
    for kind in matrix.kinds():
        place = Path(folder) / kind
        model_folder, dtype = place / "model", matrix.checkpoint_dtype(kind)
        if kind == "smollm2":
            model_folder = Path(smollm2)
            model, rows = _real(model_folder, Path(text))
        else:
            model = _tiny(kind, model_folder, dtype)
            # the last id stands for an image in the wrapper
            rows = [[i % (tiny.VOCAB - 1) for i in row] for row in tiny.sequences(LENGTHS)]
        place.mkdir(exist_ok=True)
        found[kind] = _keep(place, model_folder, model.float(), rows)
    Path(report).write_text(json.dumps(found))


def _tiny(kind: str, folder: Path, dtype: str) -> Any:
    folder.mkdir(parents=True)
    if kind in special.SPECIAL:
        return special.SPECIAL[kind](folder)
    model = tiny.build(kind.removesuffix("-bf16"))
    tiny.save(model, folder, dtype)  # the truth is that of the weights as they are saved
    return model


def _real(folder: Path, text: Path) -> tuple[Any, list[list[int]]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text.read_text())["input_ids"]
    return model, [ids[i * 40 : i * 40 + length] for i, length in enumerate(LENGTHS)]


def _keep(place: Path, folder: Path, model: Any, rows: Sequence[Sequence[int]]) -> float:
    """Returns the least error between neighbouring layers: what an off-by-one would show as."""
    truth = {str(i): torch.stack(tiny.states_of(model, row)) for i, row in enumerate(rows)}
    save_file(truth, place / "truth.safetensors")
    (place / "rows.json").write_text(json.dumps(rows))
    (place / "checkpoint.json").write_text(json.dumps(str(folder)))
    states = truth["0"]
    return min(tiny.token_error(a, b) for a, b in pairwise(states))


if __name__ == "__main__":
    main(*sys.argv[1:])
