"""How a checkpoint's weights are quantised (``quantization_config``), and what vLLM asks for it.

Compute capabilities and dtypes are those that vLLM 0.16.0 demands: ``get_min_capability`` and
``get_supported_act_dtypes`` of the method's config, below ``vllm/model_executor/layers/``
``quantization/``, which ``VllmConfig._get_quantization_config`` (``vllm/config/vllm.py``) compares
with the GPU and the model's dtype before any weight is read; for compressed-tensors those of the
scheme that the groups of weights select (``compressed_tensors/schemes/``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_HALVES = ("float16", "bfloat16")
_ANY = ("float32", *_HALVES)
_GROUPS_MOST = 16


@dataclass(frozen=True)
class Quantisation:
    method: str = ""
    """``quant_method`` as the config has it; empty for a checkpoint that is not quantised."""
    bits: int | None = None
    """Of a stored weight; the fewest where groups differ."""
    form: str = ""
    """What is stored, in words: ``4-bit integers in groups of 32, pack-quantized``."""
    activations: str = ""
    """How activations are quantised while it runs, in words; empty when they are not."""
    scheme: str = ""
    """Key of ``RULES`` where the method alone does not decide."""


@dataclass(frozen=True)
class Rule:
    """What vLLM 0.16.0 demands."""

    capability: int
    """Least compute capability: 75 is 7.5."""
    dtypes: tuple[str, ...] = _HALVES
    deprecated: bool = False
    """Refused unless ``allow_deprecated_quantization`` is set, which a run does not."""


RULES = {
    "awq": Rule(75),
    "gptq": Rule(60, ("float16",)),
    "gptq-marlin": Rule(75),  # what vLLM takes for 4 and 8 bits
    "fp8": Rule(75),  # below 8.9 as weights alone (Marlin)
    "mxfp4": Rule(80, ("bfloat16",)),
    "bitsandbytes": Rule(70, _ANY),
    "modelopt": Rule(89),
    "modelopt-nvfp4": Rule(75),
    "modelopt-mxfp8": Rule(100, ("bfloat16",)),
    "quark": Rule(70, ("float16", "bfloat16")),
    "torchao": Rule(75, _ANY),
    "auto-round": Rule(60),
    "inc": Rule(60),
    "gguf": Rule(60, _ANY),
    "moe_wna16": Rule(70),
    "fbgemm_fp8": Rule(80, deprecated=True),
    "fp_quant": Rule(100, ("bfloat16",), deprecated=True),
    "experts_int8": Rule(80, deprecated=True),
    "ptpc_fp8": Rule(75, deprecated=True),
    "petit_nvfp4": Rule(90, deprecated=True),
    "compressed-tensors": Rule(70, _ANY),
    "ct-wNa16": Rule(75),
    "ct-fp8": Rule(75),  # activations in fp8 from 8.9 on, weights alone below
    "ct-int8": Rule(75, _ANY),
    "ct-nvfp4": Rule(75),
    "ct-mxfp4": Rule(80),
    "ct-w4a8-fp8": Rule(90),
    "ct-sparse24": Rule(90),
}


def rule(found: Quantisation) -> Rule | None:
    """None for a method that vLLM 0.16.0 does not know."""
    return RULES.get(found.scheme or found.method)


def find(*configs: dict[str, Any]) -> Quantisation:
    """Of the first config that has a section about it."""
    for config in configs:
        for key in ("quantization_config", "compression_config"):
            section = config.get(key)
            if isinstance(section, dict) and section:
                return describe(section)
    return Quantisation()


def describe(section: dict[str, Any]) -> Quantisation:
    method = _word(section.get("quant_method")).lower()
    if method in ("compressed-tensors", "sparseml") or (not method and "config_groups" in section):
        return _compressed(section)
    if not method:
        method = "bitsandbytes" if _bnb_bits(section) else "unnamed"
    if method == "bitsandbytes":
        bits = _bnb_bits(section)
        kind = _word(section.get("bnb_4bit_quant_type")) if bits == 4 else "int8"
        return Quantisation(method, bits, f"{bits or '?'}-bit {kind}".strip())
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(method, section)
    if method == "mxfp4":
        return Quantisation(method, 4, "4-bit floats with a shared scale for 32 (experts alone)")
    if method.startswith("modelopt"):
        return _modelopt(section)
    bits = _bits(section, "bits", "w_bit", "weight_bits")
    form = f"{bits}-bit integers{_grouped(section)}" if bits else ""
    scheme = "gptq-marlin" if method == "gptq" and bits in (4, 8) else ""
    return Quantisation(method, bits, form, scheme=scheme)


def _fp8(method: str, section: dict[str, Any]) -> Quantisation:
    block = section.get("weight_block_size")
    form = "8-bit floats"
    if isinstance(block, list) and len(block) == 2 and all(type(b) is int for b in block):
        form += f" in blocks of {block[0]} x {block[1]}"
    kind = _word(section.get("activation_scheme"))
    return Quantisation(method, 8, form, f"8-bit floats, {kind} scales" if kind else "8-bit floats")


def _modelopt(section: dict[str, Any]) -> Quantisation:
    inner = section.get("quantization")
    algo = _word((inner if isinstance(inner, dict) else section).get("quant_algo")).upper()
    if "NVFP4" in algo or "FP4" in algo:
        return Quantisation("modelopt", 4, f"{algo}", "4-bit floats", "modelopt-nvfp4")
    if "MXFP8" in algo:
        return Quantisation("modelopt", 8, algo, "8-bit floats", "modelopt-mxfp8")
    return Quantisation("modelopt", 8 if "8" in algo else None, algo, "8-bit floats")


def _compressed(section: dict[str, Any]) -> Quantisation:
    groups = section.get("config_groups")
    values = list(groups.values())[:_GROUPS_MOST] if isinstance(groups, dict) else []
    parts = [_group(g) for g in values if isinstance(g, dict)]
    form = _word(section.get("format"))
    if not parts:
        return Quantisation("compressed-tensors", None, form)
    least = min(parts, key=lambda p: p.bits or 99)
    kinds = " or ".join(dict.fromkeys(p.form for p in parts if p.form))[:200]
    sparse = section.get("sparsity_config")
    if isinstance(sparse, dict) and "24" in _word(sparse.get("format")):
        least = Quantisation(least.method, least.bits, "", least.activations, "ct-sparse24")
    words = f"{kinds}, {form}" if kinds and form else kinds or form
    return Quantisation(least.method, least.bits, words, least.activations, least.scheme)


def _group(group: dict[str, Any]) -> Quantisation:
    """One entry of ``config_groups``; its scheme as ``_get_scheme_from_parts`` chooses it."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    weights = weights if isinstance(weights, dict) else {}
    bits = _bits(weights, "num_bits")
    kind = "floats" if weights.get("type") == "float" else "integers"
    form = f"{bits}-bit {kind}{_grouped(weights)}" if bits else ""
    if not isinstance(inputs, dict):
        scheme = "ct-wNa16" if kind == "integers" else "ct-fp8"
        if kind == "floats" and bits == 4:
            scheme = "ct-mxfp4" if weights.get("group_size") == 32 else "ct-nvfp4"
        return Quantisation("compressed-tensors", bits, form, "", scheme)
    how = "floats" if inputs.get("type") == "float" else "integers"
    wide = _bits(inputs, "num_bits")
    scheme = {
        ("floats", 8, "floats"): "ct-fp8",
        ("floats", 4, "floats"): "ct-nvfp4",
        ("integers", 8, "integers"): "ct-int8",
        ("integers", 4, "floats"): "ct-w4a8-fp8",
    }.get((kind, bits or 0, how), "")
    return Quantisation("compressed-tensors", bits, form, f"{wide or '?'}-bit {how}", scheme)


def _grouped(section: dict[str, Any]) -> str:
    size = section.get("group_size", section.get("q_group_size"))
    return f" in groups of {size}" if type(size) is int and 0 < size < 2**20 else ""


def _bits(section: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = section.get(name)
        if type(value) is int and 0 < value <= 64:
            return value
    return None


def _bnb_bits(section: dict[str, Any]) -> int | None:
    if section.get("load_in_4bit") is True:
        return 4
    return 8 if section.get("load_in_8bit") is True else None


def _word(value: Any) -> str:
    return value[:60] if isinstance(value, str) else ""
