"""compare.py REPORT FOLDER LAYERS: a run's files in FOLDER/out against transformers in float32."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from support import vllm_tiny as tiny


def main(report: str, folder: str, layers: str) -> None:
    root = Path(folder)
    truth = tiny.Truth(root / "model")
    worst, wrong = 0.0, []
    lines = (root / "rows.jsonl").read_text().splitlines()
    for index, line in enumerate(lines):
        row = json.loads(line)
        sample = torch.load(root / "out" / f"data_{index}.pt", mmap=True, weights_only=True)
        if sample["input_ids"].tolist() != row["input_ids"]:
            wrong.append(f"{index}: input_ids")
        if sample["loss_mask"].tolist() != row["loss_mask"]:
            wrong.append(f"{index}: loss_mask")
        states = truth.states(row["input_ids"])
        for layer, state in zip(json.loads(layers), sample["hidden_states"], strict=True):
            worst = max(worst, tiny.error(state, states[layer]))
    found = {"files": len(list((root / "out").glob("*.pt"))), "worst": worst, "wrong": wrong}
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
