"""What a run asks of each rank's memory: weights, KV cache, captured states, work space; pure.

Weights and captured states are sums of known sizes.  The cache's least size is vLLM's own rule.
The work space of a forward is an allowance, said to be one: nothing but a run can tell it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eagle3_agent.protocol.values import EngineName, Profile

from .checkpoint import CheckpointFacts, Group
from .dimensions import Decoder
from .sharding import KNOWN, Span, Split, exactly, item_size, weights

#: Tokens of a block of vLLM's KV cache on a GPU, and on the CPU (``platforms/cpu.py``).
BLOCK, CPU_BLOCK = 16, 128

#: Of the engines ``vllm`` and ``speculators`` (and its script), where the profile says nothing.
_TOKENS = 8192
_SEQUENCES: dict[EngineName, int] = {"vllm": 256, "speculators": 128, "script": 32}

#: Turns multi-head latent attention off in vLLM.
_NO_LATENT = "VLLM_MLA_DISABLE"

_DTYPE_OF = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Demand:
    """Bytes on each rank."""

    ranks: int
    dtype: str
    tokens: int
    """Of one step."""
    length: int
    """Tokens of the one request that the cache must hold."""
    weights: Span
    cache: Span
    """The least that vLLM accepts."""
    work: Span
    """Of a forward of ``tokens``: nothing, to a generous allowance."""
    states: Span
    """Captured in one step: the buffer, to twice of it where the model's interface adds its own."""
    known: bool
    """The architecture is one whose split is known, or nothing is split."""

    @property
    def within(self) -> Span:
        """What must fit into the share that vLLM is given."""
        return self.weights + self.cache + self.work


def demand(
    seen: CheckpointFacts, profile: Profile, engine: EngineName, block: int = BLOCK
) -> Demand:
    """What this profile asks for on each of its ranks; ``block`` is the cache's."""
    decoder = seen.decoder
    if decoder.latent and profile.host.env.get(_NO_LATENT, "0").strip() not in ("", "0"):
        decoder = _without_latent(decoder)
    ranks = max(1, profile.model.tensor_parallel_size)
    dtype = run_dtype(profile, decoder, seen.groups)
    tokens = step_tokens(profile, engine)
    length = profile.model.max_model_len + (1 if engine == "vllm" else 0)
    split = Split(decoder, ranks, dtype)
    known = ranks == 1 or decoder.architecture in KNOWN
    states = tokens * len(profile.capture.layers) * decoder.hidden * item_size(dtype)
    return Demand(
        ranks=ranks,
        dtype=dtype,
        tokens=tokens,
        length=length,
        weights=weights(seen.groups, split),
        cache=_cache(split, length, tokens, block, windows=engine == "vllm"),
        work=Span(0, _work(split, tokens, min(tokens, _sequences(profile, engine)))),
        states=Span(states, 2 * states),
        known=known,
    )


def _without_latent(decoder: Decoder) -> Decoder:
    """Keys and values of every head are kept (vLLM 0.16 ``model_arch_config_convertor.py``)."""
    width = decoder.nope_dim + decoder.latent - decoder.latent_rank
    return replace(
        decoder, latent=0, latent_rank=0, index_dim=0, kv_heads=decoder.heads, head_dim=width
    )


def run_dtype(profile: Profile, decoder: Decoder, groups: tuple[Group, ...]) -> str:
    """What ``model.dtype`` means: ``auto`` is the checkpoint's own, as the worker reads it."""
    if profile.model.dtype != "auto":
        return profile.model.dtype
    stored = (_DTYPE_OF[g.dtype] for g in groups if g.dtype in _DTYPE_OF)
    return decoder.dtype or next(stored, "bfloat16")


def step_tokens(profile: Profile, engine: EngineName) -> int:
    """``max_num_batched_tokens`` as the engine will have it (``worker/engines``)."""
    longest = profile.model.max_model_len + (1 if engine == "vllm" else 0)
    return profile.engine.max_num_batched_tokens or max(_TOKENS, longest)


def _sequences(profile: Profile, engine: EngineName) -> int:
    return profile.engine.max_num_seqs or _SEQUENCES.get(engine, 256)


def _cache(split: Split, length: int, tokens: int, block: int, *, windows: bool) -> Span:
    """One request of ``length`` tokens in every layer: less is refused at start.

    vLLM 0.16 ``v1/core/kv_cache_utils.py`` (``_check_enough_kv_cache_memory``) and
    ``v1/kv_cache_interface.py``: a layer with a sliding window keeps the window and one step.
    Without ``windows`` such layers are held like the others, as speculators has it.
    """
    decoder = split.decoder
    per_token = token_bytes(split)
    windowed = decoder.window_layers if windows else 0
    kept = min(decoder.window - 1 + tokens, length) if windowed else 0
    full = (decoder.layers - windowed) * _rounded(length, block)
    sliding = windowed * (_rounded(kept, block) + block)
    most = (full + sliding) * per_token
    known = decoder.architecture in KNOWN and per_token
    return exactly(most) if known else Span(0, most)


def token_bytes(split: Split) -> int:
    """Bytes of one token in the cache of one layer on one rank; 0 where the config is silent."""
    decoder = split.decoder
    item = decoder.kv_bits // 8 or item_size(split.dtype)
    if decoder.latent:  # multi-head latent attention: whole on every rank
        # an index's keys are eight bits with a scale of four bytes for each 128
        index = decoder.index_dim + -(-decoder.index_dim // 128) * 4
        return decoder.latent * item + index
    return 2 * max(1, decoder.kv_heads // split.ranks) * decoder.head_dim * item


def _rounded(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


def _work(split: Split, tokens: int, sequences: int) -> int:
    """An allowance for a forward's peak: the widest tensors of one layer, and the logits.

    A dense MLP holds gate and up and their product, an MoE the same for each expert that a token
    is sent to, beside some rows of hidden width and the attention's; logits are made for one
    token of each sequence, as 16 bit and twice as 32.
    """
    decoder = split.decoder
    item = item_size(split.dtype)
    inner = 3 * decoder.inner / split.ranks
    if decoder.experts_used:
        part = decoder.expert_inner / split.ranks
        routed = decoder.experts_used * (max(2 * part, decoder.hidden) + part)
        inner = max(inner, routed)
    attention = 4 * decoder.heads * max(decoder.head_dim, decoder.nope_dim) / split.ranks
    row = 4 * decoder.hidden + inner + attention
    return int(tokens * row * item + sequences * decoder.vocab * (item + 8))
