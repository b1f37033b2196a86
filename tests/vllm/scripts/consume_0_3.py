"""Train speculators 0.3's or 0.4's own draft model from a folder that the worker wrote.

consume_0_3.py REPORT FOLDER DATA MODEL: the report says what the library read and the losses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.data import Eagle3SampleFileDataset, create_collate_fn, list_files
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from transformers import AutoConfig, LlamaConfig

from eagle3_agent.worker import extras

DRAFT_VOCAB = 64
LENGTH = 256
STEPS = 6


def draft(model: str, d2t: torch.Tensor, t2d: torch.Tensor) -> Any:
    """As scripts/train.py makes it."""
    verifier = AutoConfig.from_pretrained(model)
    layer = LlamaConfig(
        vocab_size=verifier.vocab_size,
        hidden_size=verifier.hidden_size,
        intermediate_size=verifier.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=verifier.num_attention_heads,
        num_key_value_heads=verifier.num_key_value_heads,
        hidden_act=verifier.hidden_act,
        max_position_embeddings=verifier.max_position_embeddings,
        initializer_range=verifier.initializer_range,
        rms_norm_eps=verifier.rms_norm_eps,
        head_dim=verifier.hidden_size // verifier.num_attention_heads,
    )
    layer._attn_implementation = "simple_flex_attention"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(d2t),
        norm_before_residual=True,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[
                GreedyTokenProposalConfig(proposal_type="greedy", speculative_tokens=3)
            ],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=model, architectures=["LlamaForCausalLM"]),
        ),
    )
    return Eagle3DraftModel(config=config, t2d=t2d, d2t=d2t)


def train(model: Any, batch: dict[str, Any]) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss, _ = model(**batch, use_off_policy_tokens=False, ttt_steps=3)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(report: Path, data: Path, model: str) -> None:
    torch.manual_seed(0)
    counts = torch.load(data / extras.COUNTS, weights_only=True)
    vocab = AutoConfig.from_pretrained(model).vocab_size
    d2t, t2d = build_vocab_mappings_from_distribution(counts, DRAFT_VOCAB, vocab)
    samples = Eagle3SampleFileDataset(max_len=LENGTH, datapath=str(data))
    items = [samples[i] for i in range(len(samples))]
    batch = create_collate_fn(LENGTH)(items)
    report.write_text(
        json.dumps(
            {
                "files": sorted(Path(path).name for path in list_files(str(data))),
                "lengths": {
                    Path(path).name: length
                    for path, length in zip(samples.data, samples.approx_lengths)
                },
                "counts": {str(k): v for k, v in counts.items()},
                "learned": int(batch["loss_mask"].sum()),
                "kept": sorted((torch.arange(len(d2t)) + d2t).tolist()),
                "losses": train(draft(model, d2t, t2d), batch),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[3]), sys.argv[4])
