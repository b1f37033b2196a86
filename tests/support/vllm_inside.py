"""Functions that tests run inside vLLM's workers; each takes the worker.

They stand in a module of their own: vLLM's processes then import them by name, and a
traceback names this file.
"""

from __future__ import annotations

import os
from typing import Any


def native_rotary(worker: Any) -> int:
    """vLLM 0.16's CPU rotary kernel is wrong for DeepSeek's three-dimensional query."""
    changed = 0
    for module in worker.model_runner.model.modules():
        if "Rotary" in type(module).__name__:
            module._forward_method = module.forward_native
            changed += 1
    return changed


def fail_once(worker: Any) -> None:
    """The next forward of the model ends in a bare assert, as vLLM's own checks do."""
    handles: list[Any] = []

    def hook(module: Any, args: Any) -> None:
        handles.pop().remove()
        ready = False
        assert ready

    layers = worker.model_runner.model.model.layers
    handles.append(layers[3].register_forward_pre_hook(hook))


def known_requests(worker: Any) -> int:
    return len(worker.model_runner.requests)


def pid(worker: Any) -> int:
    return os.getpid()


def pools(worker: Any) -> list[str]:
    """Names of the writer threads' work so far: a rank that writes has an arena or had one."""
    return ["writes"] if worker._eagle3._keep else []


def claim_prefix_caching(worker: Any, on: bool) -> None:
    """Have vLLM's config say so; the scheduler, which decides, is not asked."""
    worker.vllm_config.cache_config.enable_prefix_caching = on


def bare_assert(worker: Any) -> None:
    raise AssertionError


def finish_step(worker: Any) -> None:
    """Do the second phase of a step that was left half done."""
    if worker.model_runner.execute_model_state is not None:
        worker.sample_tokens(None)


def __getattr__(name: str) -> Any:
    """``RenamedExtension``: speculators' own worker class with the one renamed method there."""
    if name != "RenamedExtension":
        raise AttributeError(name)
    from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension

    class RenamedExtension(HiddenStatesWorkerExtension):  # type: ignore[misc]
        def _setup_hidden_states_capture(self, layer_ids: list[int]) -> None:
            super()._setup_hidden_states_capture(layer_ids)
            model = self.model_runner.model.model
            model.get_input_embeddings = model.embed_input_ids

    return RenamedExtension
