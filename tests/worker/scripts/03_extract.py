#!/usr/bin/env python3
# mypy: ignore-errors
"""A script as users have it: transformers, batches, tqdm, torch.save, resume by highest number.

Run by tests through engine ``script``; knows nothing of the console.
"""

import argparse
import json
from pathlib import Path

import torch
from beside import LAYERS
from tqdm import tqdm
from transformers import AutoModelForCausalLM


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target-model-path", required=True)
    parser.add_argument("--train-data-path", required=True)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--max-samples", type=int, default=None)
    return parser.parse_args()


def next_index(folder):
    numbers = [int(p.stem[5:]) for p in folder.glob("data_*.pt")]
    return max(numbers, default=-1) + 1


def main():
    args = parse_args()
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in Path(args.train_data_path).read_text().splitlines()]
    rows = rows[: args.max_samples]
    model = AutoModelForCausalLM.from_pretrained(args.target_model_path)
    index = next_index(output)
    print(f"resuming at {index}")
    for start in tqdm(range(index, len(rows), args.batch_size), desc="Generating hidden states"):
        for row in rows[start : start + args.batch_size]:
            ids = torch.tensor(row["input_ids"])
            with torch.inference_mode():
                states = model(ids[None], output_hidden_states=True).hidden_states
            body = {
                "input_ids": ids,
                "hidden_states": [states[layer + 1][0].clone() for layer in LAYERS],
                "loss_mask": torch.tensor(row["loss_mask"]),
            }
            torch.save(body, output / f"data_{index}.pt")
            index += 1
    Path("counts.json").write_text(json.dumps({"samples": index}))


if __name__ == "__main__":
    main()
