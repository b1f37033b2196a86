"""The numbers of a config.json that memory depends on; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_agent.preflight.model import config as configs
from eagle3_agent.preflight.model.config import word


@dataclass(frozen=True)
class Decoder:
    """A number that the config does not give is 0."""

    architecture: str = ""
    """The outermost, which chooses vLLM's model class."""
    model_type: str = ""
    layers: int = 0
    hidden: int = 0
    vocab: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    inner: int = 0
    """Width of a dense layer's MLP."""
    expert_inner: int = 0
    experts_used: int = 0
    """Experts that a token is sent to; 0 for a dense model."""
    positions: int = 0
    latent: int = 0
    """Numbers a token and layer in the cache of multi-head latent attention; 0 without it."""
    latent_rank: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    index_dim: int = 0
    """Of a sparse attention's index, which has a cache of its own."""
    window: int = 0
    """Tokens that sliding-window layers look back; 0 when no layer is one."""
    window_layers: int = 0
    tied: bool | None = None
    """None where the config does not say: then the checkpoint's lm_head says it."""
    dtype: str = ""
    quantization: str = ""
    kv_bits: int = 0
    """Bits of a number in the KV cache that the checkpoint itself asks for; 0 for the model's."""
    towers: bool = False
    """It has a vision or audio part."""


def read_decoder(config: dict[str, Any]) -> Decoder:
    """Whatever the file holds: what is not a sound number is 0."""
    text = configs.decoder_part(config)
    heads = _number(text, "num_attention_heads", "n_head")
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    rank = _number(text, "kv_lora_rank")
    rope = _number(text, "qk_rope_head_dim")
    window, window_layers = _windows(text, layers)
    section = text.get("quantization_config") or config.get("quantization_config")
    quantization = section if isinstance(section, dict) else {}
    scheme = quantization.get("kv_cache_scheme")
    names = config.get("architectures")
    return Decoder(
        architecture=word(names[0]) if isinstance(names, list) and names else "",
        model_type=word(text.get("model_type")),
        layers=layers,
        hidden=hidden,
        vocab=_number(text, "vocab_size"),
        heads=heads,
        kv_heads=_number(text, "num_key_value_heads", "num_kv_heads", "n_head_kv") or heads,
        head_dim=_number(text, "head_dim") or (hidden // heads if heads else 0),
        inner=_number(text, "intermediate_size", "n_inner", "ffn_dim"),
        expert_inner=_number(text, "moe_intermediate_size", "intermediate_size"),
        experts_used=_number(text, "num_experts_per_tok", "moe_topk"),
        positions=_number(text, "max_position_embeddings"),
        latent=rank + rope if rank else 0,
        latent_rank=rank,
        nope_dim=_number(text, "qk_nope_head_dim"),
        value_dim=_number(text, "v_head_dim"),
        index_dim=_number(text, "index_head_dim") if text.get("index_topk") else 0,
        window=window,
        window_layers=window_layers,
        tied=_flag(text, config, "tie_word_embeddings"),
        dtype=configs.dtype(config, text),
        quantization=word(quantization.get("quant_method")),
        kv_bits=_number(scheme, "num_bits") if isinstance(scheme, dict) else 0,
        towers=bool(config.keys() & {"vision_config", "audio_config"}),
    )


def _windows(text: dict[str, Any], layers: int) -> tuple[int, int]:
    """(window, layers that have it), as far as the config's own words go."""
    window = _number(text, "sliding_window")
    kinds = text.get("layer_types")
    if not window or text.get("use_sliding_window") is False:
        return 0, 0
    if isinstance(kinds, list):
        count = sum(kind == "sliding_attention" for kind in kinds[:10_000])
        return (window, min(count, layers)) if count else (0, 0)
    every = _number(text, "sliding_window_pattern")
    return window, layers - layers // every if every else layers


def _number(config: dict[str, Any], *names: str) -> int:
    return configs.count(config, names) or 0


def _flag(text: dict[str, Any], config: dict[str, Any], name: str) -> bool | None:
    for part in (text, config):
        if isinstance(part.get(name), bool):
            return bool(part[name])
    return None
