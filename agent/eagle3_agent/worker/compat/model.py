"""Patches of how speculators' generator describes the model to vLLM: dtype, length, code, config.

They wrap ``ModelConfig``, ``AutoConfig`` and ``AutoTokenizer`` as the generator's module
sees them.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eagle3_agent.worker.engines.room import rotary_switch

from .patch import Patch, Settings, Verdict, wrap
from .sources import GENERATOR, GENERATOR_CLASS, Sources, UnreadableError, is_value, passed, shown

_MODEL = "vllm.config.model"


def _probe_dtype(sources: Sources) -> Verdict:
    call = sources.generator_call("ModelConfig")
    given = passed(call, "dtype")
    seen = f"the generator passes dtype={shown(given) if given else '(nothing)'}"
    automatic = given is None or is_value(given, "auto")
    return ("needed" if automatic else "not-needed"), seen


def _apply_dtype(settings: Settings) -> None:
    def made(model_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dtype", "auto") == "auto":
                kwargs["dtype"] = _dtype(settings, kwargs.get("model"))
            return model_config(*args, **kwargs)

        return make

    wrap("ModelConfig", "speculators/own-dtype", made)


def _dtype(settings: Settings, model: Any) -> str:
    if settings.dtype != "auto":
        return settings.dtype
    from eagle3_agent.worker import model_info

    if not Path(str(model)).is_dir():
        return "auto"  # a hub's name: there is nothing to read yet
    return model_info.read(Path(str(model))).dtype


def _probe_full_length(sources: Sources) -> Verdict:
    generate = sources.function(GENERATOR, f"{GENERATOR_CLASS}.generate")
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
            if config.max_model_len != rotary_switch(config.hf_text_config):
                config.max_model_len += 1
            return config

        return make

    wrap("ModelConfig", "speculators/full-length", made)


# ------------------------------------------------------------------ remote code, config, tokenizer


def _probe_remote_code(sources: Sources) -> Verdict:
    calls = [
        c
        for name in ("AutoConfig.from_pretrained", "ModelConfig")
        for c in [sources.generator_call(name)]
        if is_value(passed(c, "trust_remote_code"), True)
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

    wrap("AutoConfig", "speculators/remote-code", loader)
    wrap("AutoTokenizer", "speculators/remote-code", loader)
    wrap("ModelConfig", "speculators/remote-code", made)


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

    wrap("AutoConfig", "speculators/config-class", loader)


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
            config = model_config(*args, **{"skip_tokenizer_init": True, **kwargs})
            if config.is_multimodal_model and "skip_tokenizer_init" not in kwargs:
                # vLLM measures how much memory a picture takes, and its processor asks for one
                config.skip_tokenizer_init = False
            return config

        return make

    wrap("AutoTokenizer", "speculators/tokenizer", loader)
    wrap("ModelConfig", "speculators/tokenizer", made)


PATCHES = (
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
        change="gives vLLM a max_model_len larger by that one token, unless it would change the "
        "model's rotary factors: there a sequence of that length is refused",
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
        change="goes on without it; passes skip_tokenizer_init=True, except for multimodal models, "
        "whose processor needs one",
        until="speculators takes token ids alone",
        probe=_probe_tokenizer,
        apply=_apply_tokenizer,
    ),
)
