"""The patch of what speculators' hand-made config leaves out about attention: its window."""

from __future__ import annotations

from typing import Any

from .patch import Patch, Settings, Verdict, wrap
from .sources import Sources, UnreadableError, passed, shown

_CACHE = "vllm.config.cache"


def _probe_window(sources: Sources) -> Verdict:
    call = sources.generator_call("CacheConfig")
    field = sources.field(_CACHE, "CacheConfig", "sliding_window")
    if field is None:
        raise UnreadableError("CacheConfig has no field sliding_window")
    seen = f"CacheConfig has `{shown(field)}`; the generator calls {shown(call)}"
    return ("not-needed" if passed(call, "sliding_window") is not None else "needed"), seen


def _apply_window(settings: Settings) -> None:
    def made(vllm_config: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs["cache_config"].sliding_window = _window(kwargs["model_config"])
            return vllm_config(*args, **kwargs)

        return make

    wrap("VllmConfig", "speculators/sliding-window", made)


def _window(model_config: Any) -> int | None:
    """As vLLM's EngineArgs decides; a model whose layers differ tells each layer its own."""
    kinds = getattr(model_config.hf_text_config, "layer_types", None) or []
    if any(kind != "sliding_attention" for kind in kinds):
        return None
    window: int | None = model_config.get_sliding_window()
    return window


PATCHES = (
    Patch(
        id="speculators/sliding-window",
        title="Look back as far as the model does",
        symptom="states are wrong from the first token beyond the window on, silently, where all "
        "layers have one (Mistral)",
        cause="such a model takes its window from CacheConfig, which is made by hand without it",
        change="passes what vLLM's own EngineArgs would",
        until="speculators passes it",
        probe=_probe_window,
        apply=_apply_window,
    ),
)
