"""Bytes of the checkpoint's tensors on one rank of vLLM's tensor parallelism; pure.

How vLLM splits, read in 0.16.0 under ``vllm/model_executor``:

- ``layers/linear.py``: ``ColumnParallelLinear`` and its fused forms (qkv, gate and up) split the
  output, weight and bias; ``RowParallelLinear`` splits the input, and its bias is whole on every
  rank; ``ReplicatedLinear`` (routers, MLA's first projections) is whole.  Of fewer KV heads than
  ranks each rank has one whole head (``QKVParallelLinear.num_kv_head_replicas``).
- ``layers/vocab_parallel_embedding.py``: vocabularies are padded to a multiple of 64, then split.
- ``layers/fused_moe/layer.py``: experts are split along their inner width (by expert where expert
  parallelism is on: the same bytes when the ranks divide the experts); a bias of the second
  product is whole.
- ``layers/quantization/mxfp4.py``: hidden and inner width are padded, to at most 256.
- ``models/*.py``: which projection is which kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .checkpoint import TOWER, Group
from .dimensions import Decoder

Kind = Literal["column", "row", "kv", "qkv", "vocab", "replicated", "tower", "unknown"]

#: Architectures whose classes in vLLM 0.16 name their projections as ``_KINDS`` has them.
KNOWN = frozenset(
    f"{name}For{task}"
    for task, names in {
        "CausalLM": (
            "Llama Mistral Mixtral Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma2 Gemma3 GptOss DeepseekV2 "
            "DeepseekV3 DeepseekV32 Glm4 Glm4Moe Glm4MoeLite GlmMoeDsa Phi3 MiniMaxM2 Granite "
            "Olmo2 Olmo3"
        ),
        "ConditionalGeneration": "KimiK25 Gemma3 Mistral3 Qwen2_5_VL Qwen3VL Qwen3VLMoe",
    }.items()
    for name in names.split()
)

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3"),
        "column",
    ),
    **dict.fromkeys(("o_proj", "down_proj", "w2"), "row"),
    **dict.fromkeys(("k_proj", "v_proj"), "kv"),
    "qkv_proj": "qkv",
    **dict.fromkeys(("embed_tokens", "lm_head"), "vocab"),
    **dict.fromkeys(
        ("q_a_proj", "kv_a_proj_with_mqa", "wq_b", "wk", "weights_proj", "k_norm"), "replicated"
    ),
    **dict.fromkeys(("gate", "router", "shared_expert_gate", "norm", "q_norm"), "replicated"),
    "sinks": "column",
}
#: Computed anew, or one with the same of the layer that it is fused with.
_NOT_LOADED = (
    "rotary_emb.inv_freq",
    "weight_shape",
    *(f"{part}_proj.g_idx" for part in ("k", "v", "up")),
)
#: What a name may end in beside ``weight`` and the like, glued to the projection (gpt-oss).
_GLUED = ("_bias", "_blocks", "_scales")

_ITEMS = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOATS = ("F16", "BF16", "F32", "F64")
_PAD_VOCAB = 64
_PAD_MXFP4 = 256


@dataclass(frozen=True)
class Span:
    """Bytes between two bounds that are equal where nothing is in doubt."""

    least: int
    most: int

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)

    @property
    def exact(self) -> bool:
        return self.least == self.most


def exactly(count: float) -> Span:
    return Span(math.ceil(count), math.ceil(count))


@dataclass(frozen=True)
class Split:
    """How the tensors of one checkpoint are to be loaded."""

    decoder: Decoder
    ranks: int
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``: of the weights that are not packed."""


def item_size(dtype: str) -> int:
    """Bytes of one number; unknown names count as two."""
    return _ITEMS.get(dtype, 2)


def weights(groups: Iterable[Group], split: Split) -> Span:
    """Bytes of the first rank's weights."""
    groups = tuple(groups)
    total = Span(0, 0)
    for group in groups:
        if _loaded(group, groups, split.decoder):
            one = _of_one(group, split)
            total += Span(one.least * group.count, one.most * group.count)
    return total + _unpacked_latent(groups, split)


@lru_cache(maxsize=8192)
def kind(name: str) -> Kind:
    """Which kind of layer a tensor of this name belongs to in vLLM."""
    if TOWER.search(name):
        return "tower"
    parts = [_unglued(part) for part in name.split(".")]
    for part in reversed(parts):
        if part in _KINDS:
            return _KINDS[part]
        if part.endswith(("norm", "layernorm")) or part == "e_score_correction_bias":
            return "replicated"
    return "unknown"


def _unglued(part: str) -> str:
    for end in _GLUED:
        if part.endswith(end) and part.removesuffix(end) in _KINDS:
            return part.removesuffix(end)
    return part


def _loaded(group: Group, groups: Iterable[Group], decoder: Decoder) -> bool:
    name = group.name
    if group.beyond or name.endswith(_NOT_LOADED):
        return False
    if not name.startswith("lm_head") and ".lm_head." not in name:
        return True
    # a tied head is the embedding itself, whether or not the file repeats it
    return not decoder.tied or not any("embed_tokens" in g.name for g in groups)


def _of_one(group: Group, split: Split) -> Span:
    size = _bytes(group, split)
    which = kind(group.name)
    if which == "tower":  # left out where the run takes text alone and the model's class can
        return Span(0, math.ceil(size))
    if split.ranks > 1 and (split.decoder.architecture not in KNOWN or which == "unknown"):
        return Span(math.ceil(size / split.ranks), math.ceil(size))
    if which == "vocab":
        return exactly(size * _padded_share(group, split.ranks))
    if _is_mxfp4(group, split):
        return _padded_mxfp4(group, size, split)
    return exactly(size * _share(group, which, split))


def _bytes(group: Group, split: Split) -> float:
    """As loaded: plain weights in the run's dtype, packed ones and their scales as they are."""
    name = group.name
    if group.dtype not in _FLOATS:
        return group.bytes
    count = math.prod(group.shape)
    if name.endswith("e_score_correction_bias"):
        return count * 4
    if split.decoder.quantization and group.dtype == "F32" and "scale" in name:
        return group.bytes
    return count * item_size(split.dtype)


def _share(group: Group, which: Kind, split: Split) -> float:
    """Of one tensor's bytes, the part that one rank holds."""
    ranks, decoder = split.ranks, split.decoder
    scalar = math.prod(group.shape) <= 1
    if which in ("replicated", "unknown") or ranks == 1 or scalar:
        return 1.0
    kv_heads = max(1, decoder.kv_heads)
    kv = max(1, kv_heads // ranks) / kv_heads
    if which == "kv":
        return kv
    if which == "qkv":
        whole = decoder.heads + 2 * kv_heads
        return (decoder.heads / ranks + 2 * kv_heads * kv) / whole
    if which == "row" and _whole_in_row(group):
        return 1.0
    return 1.0 if which == "column" and group.name.endswith("g_idx") else 1 / ranks


def _whole_in_row(group: Group) -> bool:
    """Of a layer whose input is split: what belongs to its outputs alone."""
    last = group.name.rpartition(".")[2]
    if last == "bias" or last.endswith("_bias"):
        return True
    by_channel = len(group.shape) == 1 or group.shape[-1] == 1
    return last == "weight_scale" and by_channel


def _padded_share(group: Group, ranks: int) -> float:
    rows = group.shape[0] if group.shape else 1
    return -(-rows // _PAD_VOCAB) * _PAD_VOCAB / ranks / max(1, rows)


def _is_mxfp4(group: Group, split: Split) -> bool:
    return split.decoder.quantization == "mxfp4" and "experts" in group.name


def _padded_mxfp4(group: Group, size: float, split: Split) -> Span:
    """From what is packed to what the widest padding of any kernel makes of it."""
    share = _share(group, kind(group.name), split)
    inner, hidden = split.decoder.expert_inner, split.decoder.hidden
    if not inner or not hidden:
        return Span(math.ceil(size * share), math.ceil(size * share * 2))
    part = inner / split.ranks
    padding = _up(part, _PAD_MXFP4) / part * _up(hidden, _PAD_MXFP4) / hidden
    return Span(math.ceil(size * share), math.ceil(size * share * padding))


def _up(value: float, step: int) -> float:
    return math.ceil(value / step) * step


def _unpacked_latent(groups: Iterable[Group], split: Split) -> Span:
    """Plain copies of a packed ``kv_b_proj`` (``layers/attention/mla_attention.py``)."""
    decoder = split.decoder
    packed = any("kv_b_proj" in g.name and g.dtype not in _FLOATS for g in groups)
    if not packed or not decoder.latent_rank:
        return Span(0, 0)
    width = (decoder.nope_dim + decoder.value_dim) * decoder.heads / split.ranks
    return exactly(decoder.layers * width * decoder.latent_rank * item_size(split.dtype))
