"""A tiny random model of a checkpoint's own family, and rows of token ids for it.

The checkpoint's config is taken as it is but for its sizes, so that the library takes the same
code path as with the real weights: the same decoder class, attention and kind of experts.  Weights
are plain ones in the run's dtype, whatever the checkpoint's quantisation is.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import Profile

from .report import Asked, Report

LAYERS = 4
VOCAB = 1024
LENGTH = 256
"""Tokens of the longest row."""

_HEAD = 64
_EXPERTS = 4
_ROWS = (64, 5, LENGTH, 1, 33, 128, 17, 200)

#: Where a multimodal config keeps its language model.
_NESTED = ("text_config", "language_config", "llm_config")

#: model_type of a checkpoint -> of the language model that transformers knows.
_SAME = {"kimi_k2": "deepseek_v3"}


def perform(asked: Asked, report: Report) -> None:
    """Writes ``folder``/model and ``folder``/rows.jsonl; tells ``made`` and ``instead``."""
    profile = from_json(Profile, asked["profile"])
    folder = Path(asked["folder"])
    report.tell(phase="read the model's config")
    config = json.loads((Path(profile.model.path) / "config.json").read_bytes())
    ranks = profile.model.tensor_parallel_size
    dtype = _dtype(profile.model.dtype, config)
    report.tell(phase="build the tiny model")
    instead = ""
    try:
        made = _build(shrink(config, ranks), folder / "model", dtype)
    except Exception as error:  # many types, for what this transformers does not know
        instead = f"{type(error).__name__}: {error}"[:300]
        made = _build(_llama(ranks), folder / "model", dtype)
    _rows(folder / "rows.jsonl")
    report.tell(made=made, instead=instead, dtype=dtype, layers=LAYERS, rows=len(_ROWS))


def shrink(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The language model's config with small sizes that ``ranks`` divide; pure."""
    text = next((config[n] for n in _NESTED if isinstance(config.get(n), dict)), config)
    layers = text.get("num_hidden_layers")
    made = {
        # lists with an entry a layer: kinds of attention, compression
        key: value[:LAYERS] if isinstance(value, list) and len(value) == layers else value
        for key, value in text.items()
        if key not in ("quantization_config", "auto_map", "architectures")
    }
    made["model_type"] = _SAME.get(str(text.get("model_type")), text.get("model_type"))
    heads, shared = 2 * max(2, ranks), max(2, ranks)
    grouped = text.get("num_key_value_heads", text.get("num_attention_heads"))
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": heads * _HEAD,
        "intermediate_size": 2 * heads * _HEAD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if grouped == text.get("num_attention_heads") else shared,
    }
    made.update({k: v for k, v in sizes.items() if k in text or k != "num_key_value_heads"})
    made.update({k: v for k, v in _if_there(ranks).items() if text.get(k) is not None})
    made.update(initializer_range=0.05)  # layers differ plainly
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if text.get(name) is not None:
            made[name] = 0 if name == "pad_token_id" else 1
    return made


def _if_there(ranks: int) -> dict[str, Any]:
    """Sizes of what only some families have.

    Every expert is chosen for every token: near a routing border 16-bit arithmetic alone would
    send a token elsewhere than the reference does, and nothing could be compared.
    """
    experts = dict.fromkeys(("n_routed_experts", "num_local_experts", "num_experts"), _EXPERTS)
    chosen = dict.fromkeys(("num_experts_per_tok", "experts_per_token"), _EXPERTS)
    return {
        **experts,
        **chosen,
        "head_dim": _HEAD,
        "moe_intermediate_size": 128 * max(1, ranks),
        "shared_expert_intermediate_size": 128 * max(1, ranks),
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 128,
        "max_window_layers": LAYERS,
        "query_pre_attn_scalar": _HEAD,
    }


def _llama(ranks: int) -> dict[str, Any]:
    plain = {"model_type": "llama", "num_key_value_heads": 1, "num_attention_heads": 2}
    return shrink({**plain, "head_dim": _HEAD, "max_position_embeddings": 2048}, ranks)


def _build(config: dict[str, Any], folder: Path, dtype: str) -> str:
    """Save it; returns what it is.  Raises whatever transformers does."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind = str(config["model_type"])
    made = CONFIG_MAPPING[kind](**{k: v for k, v in config.items() if k != "model_type"})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(made).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_bytes())
    # what transformers leaves out and a run's library reads, such as DeepSeek's topk_method
    (folder / "config.json").write_text(json.dumps({**config, **saved}))
    return f"{type(model).__name__} ({kind})"


def _dtype(asked: str, config: dict[str, Any]) -> str:
    if asked != "auto":
        return asked
    parts = [config, *(config[n] for n in _NESTED if isinstance(config.get(n), dict))]
    for part in parts:
        for key in ("dtype", "torch_dtype"):
            name = str(part.get(key) or "").removeprefix("torch.")
            if name in ("float32", "bfloat16", "float16"):
                return name
    return "bfloat16"


def _rows(path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 - token ids
    with path.open("w", encoding="ascii") as file:
        for length in _ROWS:
            ids = [chance.randrange(2, VOCAB) for _ in range(length)]
            file.write(json.dumps({"input_ids": ids, "loss_mask": [1] * length}) + "\n")
