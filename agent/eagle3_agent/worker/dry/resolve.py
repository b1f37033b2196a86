"""vLLM's config as plain facts; names that a release lacks stay empty."""

from __future__ import annotations

from typing import Any

from eagle3_agent.enginereport import Resolved


def facts(config: Any, executor: str) -> Resolved:
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    return Resolved(
        architecture=_architecture(model),
        dtype=str(getattr(model, "dtype", "")).removeprefix("torch."),
        quantization=str(getattr(model, "quantization", None) or ""),
        max_model_len=_number(getattr(model, "max_model_len", 0)) or 0,
        block_size=_number(getattr(cache, "block_size", None)),
        chunked_prefill=_flag(scheduler, "enable_chunked_prefill", "chunked_prefill_enabled"),
        prefix_caching=_flag(cache, "enable_prefix_caching"),
        max_num_batched_tokens=_number(getattr(scheduler, "max_num_batched_tokens", 0)) or 0,
        max_num_seqs=_number(getattr(scheduler, "max_num_seqs", 0)) or 0,
        tensor_parallel=_number(config.parallel_config.tensor_parallel_size) or 1,
        executor=executor,
    )


def _architecture(model: Any) -> str:
    """The one that vLLM takes of those in the config."""
    try:
        return str(model.architecture)
    except Exception:  # a property that looks it up anew
        names = getattr(model, "architectures", None) or getattr(
            model.hf_config, "architectures", None
        )
        return str(names[0]) if names else ""


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(owner: Any, *names: str) -> bool | None:
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, bool):
            return value
    return None
