#!/usr/bin/env python3
# mypy: ignore-errors
"""A script as users of speculators 0.3 have it; nothing in it knows of the console."""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch
from datasets import load_from_disk
from speculators.data_generation import VllmHiddenStatesGenerator
from tqdm import tqdm


def parse_args():
    parser = argparse.ArgumentParser(description="Extract hidden states")
    parser.add_argument("--target-model-path", type=str, required=True)
    parser.add_argument("--train-data-path", type=str, required=True)
    parser.add_argument("--output-dir", type=str, required=True)
    parser.add_argument("--layer-ids", type=int, nargs="+", default=None)
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    return parser.parse_args()


def save_sample(sample, path):
    torch.save(sample, path)
    return path


def last_index(folder):
    numbers = [int(p.stem[5:]) for p in Path(folder).iterdir() if p.name.endswith(".pt")]
    return max(numbers, default=-1)


def main():
    args = parse_args()
    os.makedirs(args.output_dir, exist_ok=True)
    dataset = load_from_disk(args.train_data_path).with_format("torch")
    start = last_index(args.output_dir) + 1
    print(f"{len(dataset)} samples, starting at {start}")

    generator = VllmHiddenStatesGenerator(
        model_path=args.target_model_path,
        layer_ids=args.layer_ids,
        max_model_len=args.seq_length,
        gpu_memory_utilization=0.8,
        tensor_parallel_size=args.tensor_parallel_size,
    )
    with ThreadPoolExecutor(max_workers=4) as pool:
        futures = []
        for i in tqdm(range(start, len(dataset), args.batch_size), desc="Generating hidden states"):
            batch = dataset[i : i + args.batch_size]
            results = generator.generate(batch["input_ids"])
            for j, result in enumerate(results):
                sample = {
                    "input_ids": result["input_ids"],
                    "hidden_states": [h.contiguous() for h in result["hidden_states"]],
                    "loss_mask": batch["loss_mask"][j][: len(result["input_ids"])],
                }
                path = Path(args.output_dir) / f"data_{i + j}.pt"
                futures.append(pool.submit(save_sample, sample, path))
        for future in tqdm(as_completed(futures), total=len(futures), desc="Saving files"):
            future.result()
    print("done")


if __name__ == "__main__":
    main()
