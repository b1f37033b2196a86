"""What cannot be captured rightly: each reason with its way out, before any sample is run."""

from __future__ import annotations

from typing import Any

from eagle3_agent.worker.engines.base import EngineError


class CaptureRefused(EngineError):
    """The states would be wrong or missing; the text says why and what to do."""


def refuse(vllm_config: Any, runner: Any) -> None:
    """Raise CaptureRefused for the first thing in vLLM's config or runner that is in the way."""
    for reason in reasons(vllm_config):
        raise CaptureRefused(reason)
    _refuse_unknown_runner(runner)


def reasons(vllm_config: Any) -> list[str]:
    """What is in the way in vLLM's config, each with its way out; empty when nothing is."""
    found = [check(vllm_config) for check in (_parallel, _passes, _cache, _modules)]
    return [reason for reason in found if reason]


def _parallel(config: Any) -> str:
    parallel = config.parallel_config
    for name, title in (
        ("pipeline_parallel_size", "pipeline parallelism: no rank sees every layer"),
        ("data_parallel_size", "data parallelism: samples are split over engines"),
        ("prefill_context_parallel_size", "prefill context parallelism: rows are split over ranks"),
        ("decode_context_parallel_size", "decode context parallelism: it was never tried"),
    ):
        size = getattr(parallel, name, 1) or 1
        if size > 1:
            return f"{title} ({name} = {size}): set it to 1 and use tensor parallelism"
    for name in ("use_sequence_parallel_moe", "enable_dbo", "use_ubatching"):
        if _true(parallel, name):
            return f"{name} is on: a rank sees a part of the rows only. Switch it off"
    return ""


def _passes(config: Any) -> str:
    compilation = getattr(config, "compilation_config", None)
    # the name before 0.12 was level; 0 compiles nothing, so no pass runs
    if not getattr(compilation, "mode", getattr(compilation, "level", None)):
        return ""
    passes = getattr(compilation, "pass_config", None)
    for name in ("enable_sequence_parallelism", "enable_sp", "enable_async_tp"):
        if _true(passes, name):
            return (
                f"compilation pass {name} is on: a rank sees a part of the rows only. Switch it off"
            )
    return ""


def _cache(config: Any) -> str:
    if _true(config.cache_config, "enable_prefix_caching"):
        return (
            "prefix caching is on: tokens that are cached are not computed, so their states are "
            "missing. Set enable_prefix_caching=False"
        )
    return ""


def _modules(config: Any) -> str:
    if not _true(config.model_config, "enforce_eager"):
        return (
            "the model is compiled or replayed as a CUDA graph, so its layers do not run as "
            "modules. Set enforce_eager=True"
        )
    return ""


def _refuse_unknown_runner(runner: Any) -> None:
    batch = getattr(runner, "input_batch", None)
    missing = [
        name
        for owner, name in (
            (batch, "req_ids"),
            (batch, "num_computed_tokens_cpu"),
            (runner, "requests"),
            (runner, "execute_model"),
        )
        if not hasattr(owner, name)
    ]
    if missing:
        kind = f"{type(runner).__module__}.{type(runner).__qualname__}"
        raise CaptureRefused(
            f"vLLM's model runner {kind} has no {', '.join(missing)}, so rows cannot be told "
            "apart. Set VLLM_USE_V2_MODEL_RUNNER=0 in host.env, or use a vLLM up to 0.32"
        )


def _true(owner: Any, name: str) -> bool:
    """A flag that some releases lack, or have as a property that may raise."""
    try:
        value = getattr(owner, name, False)
    except Exception:
        return False
    return value is True


def refuse_scaled(layers: Any, dtype: str) -> None:
    """DeepSeek's layers in float16 keep states divided by their routed scaling factor.

    Seen on the layer itself: other families have such a factor in their config without doing so.
    """
    for layer in layers:
        scale = getattr(layer, "routed_scaling_factor", None)
        if dtype == "float16" and scale not in (None, 1.0):
            raise CaptureRefused(
                f"{type(layer).__name__} in float16 divides its states by {scale}: "
                "set model.dtype to bfloat16"
            )
