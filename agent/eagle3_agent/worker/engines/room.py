"""Room for the one token that vLLM samples: samples as long as the model's limit must run.

vLLM refuses a prompt that fills ``max_model_len``, since nothing could follow.  The
sampled token is never run, so one place more is asked for, and is never used.
"""

from __future__ import annotations

import os
from typing import Any

from eagle3_agent.protocol.values import ModelSection
from eagle3_agent.worker.model_info import ModelInfo

from .base import EngineError


def room_for_one(model: ModelSection, info: ModelInfo) -> int:
    """The ``max_model_len`` to give vLLM; raises EngineError where the model has no such length."""
    derived, switch = _limits(model)
    asked = model.max_model_len
    if asked > derived:
        raise EngineError(
            f"model.max_model_len = {asked}, and {info.path.name} has {derived} positions: "
            f"set it to {derived} or less"
        )
    if asked == switch:
        # vLLM chooses between short and long rotary factors by max_model_len alone
        raise EngineError(
            f"model.max_model_len = {asked} is where {info.path.name} changes its rotary factors, "
            f"and vLLM needs a place more: set model.max_model_len and data.seq_length to "
            f"{asked - 1}"
        )
    if asked == derived:
        os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return asked + 1


def _limits(model: ModelSection) -> tuple[int, int | None]:
    """vLLM's own longest length of the model, and where its rotary factors change."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(
        model=model.path, trust_remote_code=model.trust_remote_code, skip_tokenizer_init=True
    )
    config = arguments.create_model_config()
    return int(config.max_model_len), rotary_switch(config.hf_text_config)


def rotary_switch(text: Any) -> int | None:
    """The max_model_len above which vLLM takes other rotary factors; None where it has one set."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    long = isinstance(rope, dict) and (rope.get("long_factor") or "short_factor" in rope)
    if not long:
        return None
    found = rope.get("original_max_position_embeddings") or getattr(
        text, "original_max_position_embeddings", None
    )
    return int(found) if found else None
