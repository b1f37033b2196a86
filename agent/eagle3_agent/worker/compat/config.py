"""Patches of the limits that speculators' generator sets: SchedulerConfig and CacheConfig.

They wrap both classes as the generator's module sees them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .patch import Patch, Settings, Verdict, wrap
from .sources import GENERATOR, Sources, UnreadableError, is_value, passed, shown

_SCHEDULER = "vllm.config.scheduler"
_CACHE = "vllm.config.cache"


# ------------------------------------------------------------------ SchedulerConfig


def _probe_encoder_decoder(sources: Sources) -> Verdict:
    call = sources.generator_call("SchedulerConfig")
    field = sources.field(_SCHEDULER, "SchedulerConfig", "is_encoder_decoder")
    if field is None:
        return "not-needed", "SchedulerConfig has no field is_encoder_decoder"
    seen = f"SchedulerConfig has `{shown(field)}`; the generator calls {shown(call)}"
    missing = field.value is None and passed(call, "is_encoder_decoder") is None
    return ("needed" if missing else "not-needed"), seen


def _apply_encoder_decoder(settings: Settings) -> None:
    latest: list[Any] = []

    def remembering(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            latest[:] = [model_config(*args, **kwargs)]
            return latest[0]

        return make

    def completed(scheduler_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            # the generator's one expression builds the model's config first
            kwargs.setdefault("is_encoder_decoder", bool(latest and latest[0].is_encoder_decoder))
            return scheduler_config(*args, **kwargs)

        return make

    wrap("ModelConfig", "speculators/encoder-decoder-field", remembering)
    wrap("SchedulerConfig", "speculators/encoder-decoder-field", completed)


def _probe_async(sources: Sources) -> Verdict:
    call = sources.generator_call("SchedulerConfig")
    field = sources.field(_SCHEDULER, "SchedulerConfig", "async_scheduling")
    if field is None:
        return "not-needed", "SchedulerConfig has no field async_scheduling"
    seen = f"SchedulerConfig has `{shown(field)}`; the generator calls {shown(call)}"
    if passed(call, "async_scheduling") is not None or is_value(field.value, False):
        return "not-needed", seen
    return "needed", seen


def _apply_async(settings: Settings) -> None:
    wrap("SchedulerConfig", "speculators/async-scheduling", _with(async_scheduling=False))


# ------------------------------------------------------------------ CacheConfig


def _probe_prefix_caching(sources: Sources) -> Verdict:
    call = sources.generator_call("CacheConfig")
    field = sources.field(_CACHE, "CacheConfig", "enable_prefix_caching")
    if field is None:
        raise UnreadableError("CacheConfig has no field enable_prefix_caching")
    seen = f"CacheConfig has `{shown(field)}`; the generator calls {shown(call)}"
    given = passed(call, "enable_prefix_caching")
    off = is_value(given, False) if given is not None else is_value(field.value, False)
    return ("not-needed" if off else "needed"), seen


def _apply_prefix_caching(settings: Settings) -> None:
    wrap("CacheConfig", "speculators/prefix-caching", _with(enable_prefix_caching=False))


# ------------------------------------------------------------------ limits


def _probe_chunked(sources: Sources) -> Verdict:
    call = sources.generator_call("SchedulerConfig")
    field = sources.field(_SCHEDULER, "SchedulerConfig", "enable_chunked_prefill")
    if field is None:
        raise UnreadableError("SchedulerConfig has no field enable_chunked_prefill")
    seen = f"SchedulerConfig has `{shown(field)}`; the generator calls {shown(call)}"
    given = passed(call, "enable_chunked_prefill")
    on = is_value(given if given is not None else field.value, True)
    return ("not-needed" if on else "needed"), seen


def _apply_chunked(settings: Settings) -> None:
    wrap("SchedulerConfig", "speculators/chunked-prefill", _with(enable_chunked_prefill=True))


def _probe_limits(sources: Sources) -> Verdict:
    call = sources.generator_call("SchedulerConfig")
    if passed(call, "max_num_seqs") is None:
        raise UnreadableError(f"the generator does not pass max_num_seqs: {shown(call)}")
    constants = [
        node
        for node in sources.module(GENERATOR).body
        if isinstance(node, ast.Assign) and shown(node.targets[0]) in _LIMITS
    ]
    text = ", ".join(f"`{shown(node)}`" for node in constants)
    if not text:
        raise UnreadableError(f"{GENERATOR} has none of {', '.join(_LIMITS)}")
    return "needed", f"the generator has {text}, and calls {shown(call)}"


_LIMITS = ("MAX_NUM_SEQS", "MIN_MAX_BATCHED_TOKENS")


def _apply_limits(settings: Settings) -> None:
    def made(scheduler_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            tokens = settings.max_num_batched_tokens or kwargs["max_num_batched_tokens"]
            # vLLM refuses more sequences than tokens in a step
            sequences = settings.max_num_seqs or min(kwargs["max_num_seqs"], tokens)
            limits = {"max_num_batched_tokens": tokens, "max_num_seqs": sequences}
            return scheduler_config(*args, **{**kwargs, **limits})

        return make

    wrap("SchedulerConfig", "speculators/batch-limits", made)


def _with(**values: Any) -> Callable[[Any], Any]:
    """Calls of a class with these keywords, whatever the caller gives for them."""

    def made(original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, **values})

        return make

    return made


PATCHES = (
    Patch(
        id="speculators/encoder-decoder-field",
        title="Name whether the model is an encoder-decoder",
        symptom="pydantic: is_encoder_decoder, Field required",
        cause="SchedulerConfig asks for a field that speculators does not pass",
        change="passes the model config's own is_encoder_decoder",
        until="SchedulerConfig has a default for it, or speculators passes it",
        probe=_probe_encoder_decoder,
        apply=_apply_encoder_decoder,
    ),
    Patch(
        id="speculators/async-scheduling",
        title="One step at a time",
        symptom="workers return futures for a step that the generator awaits at once",
        cause="vLLM turns asynchronous scheduling on where it is not named; "
        "the generator drives the plain scheduler",
        change="passes async_scheduling=False",
        until="speculators passes it",
        probe=_probe_async,
        apply=_apply_async,
    ),
    Patch(
        id="speculators/prefix-caching",
        title="Compute every token",
        symptom="AssertionError with an empty message in block_pool.py; with a block hasher: "
        "states of shared prefixes are missing",
        cause="prefix caching is on by default, and cached tokens have no states",
        change="passes enable_prefix_caching=False",
        until="speculators passes it",
        probe=_probe_prefix_caching,
        apply=_apply_prefix_caching,
    ),
    Patch(
        id="speculators/chunked-prefill",
        title="Let a long prompt take several steps",
        symptom="a token budget below max_model_len is refused, and steps are left half empty",
        cause="a SchedulerConfig that is made by hand leaves chunked prefill off (vLLM 0.11)",
        change="passes enable_chunked_prefill=True",
        until="vLLM 0.11 is not supported any more",
        probe=_probe_chunked,
        apply=_apply_chunked,
    ),
    Patch(
        id="speculators/batch-limits",
        title="Honour the profile's limits of a step",
        symptom="32 sequences in flight and 8192 tokens a step, whatever the profile says",
        cause="both are constants of the generator's module",
        change="passes engine.max_num_batched_tokens and engine.max_num_seqs where they are given",
        until="speculators takes both as arguments",
        probe=_probe_limits,
        apply=_apply_limits,
    ),
)
