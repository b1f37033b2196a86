"""Patches of the configuration that speculators' generator builds for vLLM.

They wrap ``ModelConfig``, ``SchedulerConfig``, ``CacheConfig``, ``AutoConfig`` and
``AutoTokenizer`` as the generator's module sees them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .patch import Patch, Settings, Verdict, generator_module, replace
from .sources import Sources, UnreadableError, passed, shown

_SCHEDULER = "vllm.config.scheduler"
_CACHE = "vllm.config.cache"
_MODEL = "vllm.config.model"


def _wrap(name: str, patch: str, make: Callable[[Any], Any]) -> None:
    def marked(current: Any) -> Any:
        made = make(current)
        # a class cannot lend its __dict__; the name alone helps whoever reads a traceback
        return wraps(current, updated=())(made) if callable(current) else made

    replace(generator_module(), name, patch, marked)


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

    _wrap("ModelConfig", "speculators/encoder-decoder-field", remembering)
    _wrap("SchedulerConfig", "speculators/encoder-decoder-field", completed)


def _probe_async(sources: Sources) -> Verdict:
    call = sources.generator_call("SchedulerConfig")
    field = sources.field(_SCHEDULER, "SchedulerConfig", "async_scheduling")
    if field is None:
        return "not-needed", "SchedulerConfig has no field async_scheduling"
    seen = f"SchedulerConfig has `{shown(field)}`; the generator calls {shown(call)}"
    if passed(call, "async_scheduling") is not None or _is(field.value, False):
        return "not-needed", seen
    return "needed", seen


def _apply_async(settings: Settings) -> None:
    def made(scheduler_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("async_scheduling", False)
            return scheduler_config(*args, **kwargs)

        return make

    _wrap("SchedulerConfig", "speculators/async-scheduling", made)


# ------------------------------------------------------------------ CacheConfig


def _probe_prefix_caching(sources: Sources) -> Verdict:
    call = sources.generator_call("CacheConfig")
    field = sources.field(_CACHE, "CacheConfig", "enable_prefix_caching")
    if field is None:
        raise UnreadableError("CacheConfig has no field enable_prefix_caching")
    seen = f"CacheConfig has `{shown(field)}`; the generator calls {shown(call)}"
    given = passed(call, "enable_prefix_caching")
    off = _is(given, False) if given is not None else _is(field.value, False)
    return ("not-needed" if off else "needed"), seen


def _apply_prefix_caching(settings: Settings) -> None:
    def made(cache_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs["enable_prefix_caching"] = False
            return cache_config(*args, **kwargs)

        return make

    _wrap("CacheConfig", "speculators/prefix-caching", made)


# ------------------------------------------------------------------ ModelConfig


def _probe_dtype(sources: Sources) -> Verdict:
    call = sources.generator_call("ModelConfig")
    given = passed(call, "dtype")
    seen = f"the generator passes dtype={shown(given) if given else '(nothing)'}"
    automatic = given is None or _is(given, "auto")
    return ("needed" if automatic else "not-needed"), seen


def _apply_dtype(settings: Settings) -> None:
    def made(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dtype", "auto") == "auto":
                kwargs["dtype"] = _dtype(settings, kwargs.get("model"))
            return model_config(*args, **kwargs)

        return make

    _wrap("ModelConfig", "speculators/own-dtype", made)


def _dtype(settings: Settings, model: Any) -> str:
    if settings.dtype != "auto":
        return settings.dtype
    from eagle3_agent.worker import model_info

    if not Path(str(model)).is_dir():
        return "auto"  # a hub's name: there is nothing to read yet
    return model_info.read(Path(str(model))).dtype


def _probe_full_length(sources: Sources) -> Verdict:
    generate = sources.function(
        "speculators.data_generation.vllm_hidden_states_generator",
        "VllmHiddenStatesGenerator.generate",
    )
    cuts = [
        n
        for n in ast.walk(generate)
        if isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Sub)
        and ast.unparse(n.left).endswith("max_model_len")
    ]
    if not cuts:
        return "not-needed", "generate() does not cut sequences by max_model_len"
    return "needed", f"generate() cuts every sequence to `{shown(cuts[0])}` tokens"


def _apply_full_length(settings: Settings) -> None:
    def made(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            config = model_config(*args, **kwargs)
            # room for the one token that is sampled and never computed: positions that are
            # computed stay below the length asked for, and so below the model's own limit
            config.max_model_len += 1
            return config

        return make

    _wrap("ModelConfig", "speculators/full-length", made)


# ------------------------------------------------------------------ remote code, config, tokenizer


def _probe_remote_code(sources: Sources) -> Verdict:
    calls = [
        c
        for name in ("AutoConfig.from_pretrained", "ModelConfig")
        for c in [sources.generator_call(name)]
        if _is(passed(c, "trust_remote_code"), True)
    ]
    if not calls:
        return "not-needed", "the generator does not pass trust_remote_code=True"
    return "needed", f"the generator calls {shown(calls[0])}"


def _apply_remote_code(settings: Settings) -> None:
    trust = settings.trust_remote_code

    def loader(auto: Any) -> Any:
        def from_pretrained(*args: Any, **kwargs: Any) -> Any:
            return auto.from_pretrained(*args, **{**kwargs, "trust_remote_code": trust})

        return SimpleNamespace(from_pretrained=from_pretrained)

    def made(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            return model_config(*args, **{**kwargs, "trust_remote_code": trust})

        return make

    _wrap("AutoConfig", "speculators/remote-code", loader)
    _wrap("AutoTokenizer", "speculators/remote-code", loader)
    _wrap("ModelConfig", "speculators/remote-code", made)


def _probe_config_class(sources: Sources) -> Verdict:
    call = sources.generator_call("AutoConfig.from_pretrained")
    function = sources.function("vllm.transformers_utils.config", "get_config")
    return "needed", f"the generator calls {shown(call, 90)}; vLLM reads it by {shown(function)}"


def _apply_config_class(settings: Settings) -> None:
    def loader(auto: Any) -> Any:
        def from_pretrained(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return auto.from_pretrained(path, *args, **kwargs)
            except ValueError:
                from vllm.transformers_utils.config import get_config

                return get_config(path, trust_remote_code=settings.trust_remote_code)

        return SimpleNamespace(from_pretrained=from_pretrained)

    _wrap("AutoConfig", "speculators/config-class", loader)


def _probe_tokenizer(sources: Sources) -> Verdict:
    call = sources.generator_call("AutoTokenizer.from_pretrained")
    field = sources.field(_MODEL, "ModelConfig", "skip_tokenizer_init")
    if field is None:
        raise UnreadableError("ModelConfig has no field skip_tokenizer_init")
    return "needed", f"the generator calls {shown(call)}; ModelConfig has `{shown(field)}`"


def _apply_tokenizer(settings: Settings) -> None:
    def loader(auto: Any) -> Any:
        def from_pretrained(*args: Any, **kwargs: Any) -> Any:
            try:
                return auto.from_pretrained(*args, **kwargs)
            except Exception:
                # whatever a tokenizer's own code raises: of it, only the id that would end a
                # decode is read, and nothing is decoded here
                return SimpleNamespace(eos_token_id=None)

        return SimpleNamespace(from_pretrained=from_pretrained)

    def made(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("skip_tokenizer_init", True)
            return model_config(*args, **kwargs)

        return make

    _wrap("AutoTokenizer", "speculators/tokenizer", loader)
    _wrap("ModelConfig", "speculators/tokenizer", made)


def _is(node: ast.expr | None, value: object) -> bool:
    return (isinstance(node, ast.Constant) and node.value is value) or (
        isinstance(node, ast.Constant) and isinstance(value, str) and node.value == value
    )


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
        id="speculators/own-dtype",
        title="Keep the checkpoint's dtype",
        symptom="a float32 checkpoint runs in bfloat16, silently",
        cause="vLLM's dtype auto turns float32 into a 16-bit dtype",
        change="passes the profile's dtype, or the checkpoint's own for auto",
        until="speculators takes a dtype",
        probe=_probe_dtype,
        apply=_apply_dtype,
    ),
    Patch(
        id="speculators/full-length",
        title="Keep the last token of a full sequence",
        symptom="a sequence of max_model_len tokens comes back one state short, silently",
        cause="the generator leaves room for the token that it samples",
        change="gives vLLM a max_model_len larger by that one token",
        until="speculators stops cutting sequences",
        probe=_probe_full_length,
        apply=_apply_full_length,
    ),
    Patch(
        id="speculators/remote-code",
        title="Run a checkpoint's own code only when told to",
        symptom="Python files of the model folder are executed whatever the profile says",
        cause="the generator passes trust_remote_code=True",
        change="passes the profile's trust_remote_code",
        until="speculators makes it an argument",
        probe=_probe_remote_code,
        apply=_apply_remote_code,
    ),
    Patch(
        id="speculators/config-class",
        title="Read configs that only vLLM knows",
        symptom="AutoConfig: model type kimi_k25 is not recognised",
        cause="transformers has no class for it and the checkpoint no auto_map; vLLM has a class",
        change="asks vLLM's get_config where AutoConfig does not know the model type",
        until="transformers knows every model type that vLLM does",
        probe=_probe_config_class,
        apply=_apply_config_class,
    ),
    Patch(
        id="speculators/tokenizer",
        title="Do without a tokenizer",
        symptom="a missing or remote-code tokenizer ends the load, though token ids are given",
        cause="the generator and vLLM's structured output load one that nothing here uses",
        change="goes on without it; passes skip_tokenizer_init=True",
        until="speculators takes token ids alone",
        probe=_probe_tokenizer,
        apply=_apply_tokenizer,
    ),
)
