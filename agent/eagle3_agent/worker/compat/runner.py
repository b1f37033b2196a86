"""Patch of which of vLLM's model runners is used."""

from __future__ import annotations

import os

from .patch import Patch, Settings, Verdict
from .sources import Sources, is_value, shown

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def _probe(sources: Sources) -> Verdict:
    default = sources.assigned("vllm.envs", _VARIABLE)
    if default is None:
        return "not-needed", "vLLM has one model runner"
    seen = f"vllm.envs has `{shown(default)}`"
    return ("not-needed" if is_value(default.value, False) else "needed"), seen


def apply(settings: Settings) -> None:
    os.environ.setdefault(_VARIABLE, "0")


PATCHES = (
    Patch(
        id="vllm/model-runner",
        title="Use the model runner that says whose rows it computes",
        symptom="the model runner has no req_ids, so rows cannot be told apart",
        cause="vLLM 0.24 and later choose a second model runner for some architectures",
        change=f"sets {_VARIABLE}=0 unless it is set",
        until="the capture reads the second runner's batch",
        probe=_probe,
        apply=apply,
    ),
)
