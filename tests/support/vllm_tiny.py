"""Tiny random checkpoints and their true states; runs under a vLLM environment.

Plain ones are a ``transformers`` model saved; those that no library saves (a multimodal wrapper,
packed weights) are in ``vllm_special``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

LAYERS = 8
HIDDEN = 128
VOCAB = 500
WINDOW = 48
"""Tokens that a layer with a sliding window looks back."""

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
    """Save a random checkpoint of one of ``PLAIN`` into ``folder``."""
    save(build(kind), folder, dtype)
    return folder


def build(kind: str) -> Any:
    """The model itself, float32, always the same weights."""
    torch.manual_seed(7)
    model = PLAIN[kind]().eval()
    for parameter in model.parameters():
        if parameter.dim() < 2 and bool((parameter == 0).all()):
            parameter.data.normal_(std=0.05)  # biases and sinks that start as zeros would hide
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)
    return model


def save(model: Any, folder: Path, dtype: str = "float32") -> None:
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if model.config.model_type == "deepseek_v3":
        # transformers 4.57 leaves out what vLLM's router reads
        change_config(folder, topk_method="noaux_tc", scoring_func="sigmoid")


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _llama(**changes: Any) -> Any:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_COMMON, **changes}))


def _qwen3() -> Any:
    import transformers

    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_COMMON, head_dim=32))


def _qwen3_moe() -> Any:
    import transformers

    config = transformers.Qwen3MoeConfig(
        **_COMMON,
        head_dim=32,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def _deepseek(**changes: Any) -> Any:
    import transformers

    options = {
        **_COMMON,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        # the sizes of the real model's attention heads: kernels know few others
        "kv_lora_rank": 512,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "routed_scaling_factor": 2.5,
        **changes,
    }
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**options))


def _gpt_oss(experts: int = 2) -> Any:
    import transformers

    config = transformers.GptOssConfig(
        # its positions are stretched from 4096 to this
        **{**_COMMON, "max_position_embeddings": 131072},
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=experts,
        sliding_window=WINDOW,
    )
    # the only attention of this model that knows its sinks
    config._attn_implementation = "eager"
    return transformers.GptOssForCausalLM(config)


def _mistral() -> Any:
    import transformers

    config = transformers.MistralConfig(**_COMMON, head_dim=32, sliding_window=WINDOW)
    return transformers.MistralForCausalLM(config)


def _gemma3() -> Any:
    import transformers

    config = transformers.Gemma3TextConfig(
        **{**_COMMON, "tie_word_embeddings": True},
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
    )
    return transformers.Gemma3ForCausalLM(config)


#: Kind -> the model, random.  Where nothing is routed (``deepseek-dense``), or to every expert
#: (``gpt-oss-all``), bfloat16 flips nothing.
PLAIN: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3-moe": _qwen3_moe,
    "deepseek": _deepseek,
    "deepseek-dense": lambda: _deepseek(first_k_dense_replace=LAYERS),
    "gpt-oss": _gpt_oss,
    "gpt-oss-all": lambda: _gpt_oss(experts=4),
    "mistral": _mistral,
    "gemma3": _gemma3,
}


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
        return states_of(self._model, row)


def states_of(model: Any, row: Sequence[int]) -> list[torch.Tensor]:
    """One [tokens, hidden] per decoder layer of a causal language model."""
    layers = model.model.layers
    with torch.inference_mode(), _recording(layers) as found:
        model(torch.tensor([list(row)]), use_cache=False)
    return [found[i] for i in range(len(layers))]


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


def token_error(state: torch.Tensor, truth: torch.Tensor) -> float:
    """The worst token's |captured - truth| / |truth|, as vectors; infinite for another shape.

    Real models have a few enormous numbers in the first token, which ``error`` would measure
    everything against.
    """
    if state.shape != truth.shape:
        return float("inf")
    return float(((state.float() - truth).norm(dim=1) / truth.norm(dim=1)).max())
