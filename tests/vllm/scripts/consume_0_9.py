"""Train speculators 0.9's own draft model from a folder that the worker wrote.

consume_0_9.py REPORT FOLDER DATA MODEL: the report says what the library read and the losses.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from hs_connectors import FileTransfer
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import parse_vocab_mappings
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.recovery import SampleUnavailable
from transformers import AutoConfig, LlamaConfig

from eagle3_agent.worker import extras

DRAFT_VOCAB = 64
LENGTH = 256
STEPS = 6


def train(model: Any, batch: dict[str, Any]) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    loss_config = resolve_loss_config("kl_div", "eager")  # the fused one needs a GPU
    batch = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss, _ = model(**batch, ttt_steps=3, loss_config=loss_config)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(report: Path, data: Path, model: str) -> None:
    torch.manual_seed(0)
    prepared = data / extras.PREPARED
    samples = ArrowDataset(
        max_len=LENGTH,
        datapath=prepared,
        transfer=FileTransfer(data),
        on_missing="skip",
        hidden_states_dtype=torch.float32,
    )
    items = [samples[i] for i in range(len(samples))]
    there = [item for item in items if not isinstance(item, SampleUnavailable)]
    config = AutoConfig.from_pretrained(model)
    names = argparse.Namespace(
        d2t_path=None,
        t2d_path=None,
        data_path=str(prepared),
        draft_vocab_size=DRAFT_VOCAB,
        token_freq_path=None,
        verifier_name_or_path=model,
        trust_remote_code=False,
    )
    d2t, t2d, size = parse_vocab_mappings(names)
    draft = Eagle3DraftModel.from_training_args(
        LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1}),
        t2d=t2d,
        d2t=d2t,
        draft_vocab_size=size,
        norm_before_residual=True,
        ttt_steps=3,
        verifier_name_or_path=model,
        target_layer_ids=[2, 4, 5],
        draft_attn_impl="eager",
    )
    collate = CollateFn(LENGTH, config.hidden_size, dtype=torch.float32, preprocess=shift_batch)
    batch = collate(items)
    report.write_text(
        json.dumps(
            {
                "rows": len(items),
                "missing": [i for i, x in enumerate(items) if isinstance(x, SampleUnavailable)],
                "lengths": [int(n) for n in samples.approx_lengths],
                "learned": sum(int(item["loss_mask"].sum()) for item in there),
                "kept": sorted((torch.arange(size) + d2t).tolist()),
                "losses": train(draft, batch),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[3]), sys.argv[4])
