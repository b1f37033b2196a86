"""Tiny random checkpoints and their true states; runs under the vLLM environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

LAYERS = 8
HIDDEN = 128
VOCAB = 500

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    # layers differ plainly (0.4 and more), and bfloat16 stays near float32 (0.014)
    "initializer_range": 0.05,
}


def make(kind: str, folder: Path, dtype: str = "float32") -> Path:
    """Save a random checkpoint of ``llama``, ``qwen3`` or ``deepseek`` into ``folder``."""
    import transformers

    torch.manual_seed(7)
    if kind == "llama":
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_COMMON))
    elif kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_COMMON, head_dim=32))
    else:
        model = transformers.DeepseekV3ForCausalLM(_deepseek())
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if kind == "deepseek":
        _complete_deepseek(folder)
    return folder


def _deepseek() -> Any:
    import transformers

    return transformers.DeepseekV3Config(
        **{**_COMMON, "num_key_value_heads": 4},
        moe_intermediate_size=48,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=48,
        v_head_dim=32,
        routed_scaling_factor=2.5,
    )


def _complete_deepseek(folder: Path) -> None:
    # transformers 4.57 leaves out what vLLM's router reads
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(topk_method="noaux_tc", scoring_func="sigmoid")
    file.write_text(json.dumps(config))


def sequences(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random ids; the first 40 of every sequence that is long enough are the same."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(0, VOCAB, (40,), generator=generator).tolist()
    rows = []
    for length in lengths:
        row = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
        rows.append(shared + row[40:] if length > 40 else row)
    return rows


class Truth:
    """transformers' states in float32, by forward hooks: also the last layer before the norm."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def states(self, row: Sequence[int]) -> list[torch.Tensor]:
        """One [tokens, hidden] per decoder layer."""
        with torch.inference_mode(), _recording(self._model.model.layers) as found:
            self._model(torch.tensor([list(row)]), use_cache=False)
        return [found[i] for i in range(LAYERS)]


@contextmanager
def _recording(layers: Any) -> Iterator[dict[int, torch.Tensor]]:
    found: dict[int, torch.Tensor] = {}

    def hook(index: int) -> Any:
        def keep(module: Any, args: Any, output: Any) -> None:
            state = output[0] if isinstance(output, tuple) else output
            found[index] = state[0].clone()

        return keep

    handles = [layer.register_forward_hook(hook(i)) for i, layer in enumerate(layers)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def error(state: torch.Tensor, truth: torch.Tensor) -> float:
    """max|captured - truth| / max|truth|; infinite for another shape."""
    if state.shape != truth.shape:
        return float("inf")
    return float((state.float() - truth).abs().max() / truth.abs().max())
