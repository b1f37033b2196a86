"""What ``config.json`` says of the decoder; pure, and true to whatever JSON is in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import quantised
from .quantised import Quantisation

#: Where multimodal configs keep the language model's part.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_DTYPES = ("float32", "bfloat16", "float16")
_ITEMS_MOST = 16


@dataclass(frozen=True)
class Config:
    model_type: str = ""
    text_type: str = ""
    """``model_type`` of the decoder's part; the same for a model of text alone."""
    architecture: str = ""
    layers: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    dtype: str = ""
    """``float32``, ``bfloat16`` or ``float16``; empty when it does not say."""
    quantisation: Quantisation = field(default_factory=Quantisation)
    auto_map: dict[str, str] = field(default_factory=dict)
    """Auto class -> ``module.Class`` of the checkpoint's own Python."""
    extra_layers: int = 0
    """Layers after the decoder's own, for predicting further tokens (MTP)."""
    routed_scale: float | None = None
    special_ids: dict[str, int] = field(default_factory=dict)
    """``bos_token_id`` and the like -> the largest id given for it."""


def interpret(config: dict[str, Any]) -> Config:
    text = decoder_part(config)
    return Config(
        model_type=word(config.get("model_type")),
        text_type=word(text.get("model_type")) or word(config.get("model_type")),
        architecture=", ".join(map(word, _items(config.get("architectures"))))[:200],
        layers=count(text, _LAYERS),
        hidden=count(text, _HIDDEN),
        vocab=count(text, ("vocab_size",)),
        dtype=dtype(config, text),
        quantisation=quantised.find(config, text),
        auto_map=auto_map(config),
        extra_layers=count(text, ("num_nextn_predict_layers",)) or 0,
        routed_scale=_float(text.get("routed_scaling_factor")),
        special_ids={**_special(text), **_special(config)},
    )


def word(value: Any) -> str:
    return value[:100] if isinstance(value, str) else ""


def auto_map(config: dict[str, Any]) -> dict[str, str]:
    """Of config.json, or (with a list of a slow and a fast class) of tokenizer_config.json."""
    entries = config.get("auto_map")
    if isinstance(entries, list):  # an old tokenizer_config.json
        entries = {"AutoTokenizer": entries}
    found = {}
    for name, value in list(entries.items())[:_ITEMS_MOST] if isinstance(entries, dict) else ():
        options = value if isinstance(value, list) else [value]
        found[word(name)] = next((word(o) for o in reversed(options[:2]) if word(o)), "")
    return {name: value for name, value in found.items() if name and value}


def decoder_part(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the decoder: the config itself, or nested one or two deep."""
    for _ in range(2):
        if count(config, _LAYERS) is not None:
            return config
        inner = [config[k] for k in _NESTED if isinstance(config.get(k), dict)]
        if not inner:
            return config
        config = inner[0]
    return config


def count(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these keys that holds a whole number above 0 that a model could have."""
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 < value < 2**40:
            return value
    return None


def _float(value: Any) -> float | None:
    if type(value) not in (int, float) or not abs(value) < 1e12:
        return None
    return float(value)


def dtype(*configs: dict[str, Any]) -> str:
    """``float32``, ``bfloat16`` or ``float16`` by the first that says so, or empty."""
    for config in configs:
        for key in ("dtype", "torch_dtype"):
            name = word(config.get(key)).removeprefix("torch.")
            if name in _DTYPES:
                return name
    return ""


def _special(config: dict[str, Any]) -> dict[str, int]:
    found = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(key)
        ids = [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]
        if ids:
            found[key] = min(max(ids), 2**62)
    return found


def _items(value: Any) -> list[Any]:
    return value[:_ITEMS_MOST] if isinstance(value, list) else []
