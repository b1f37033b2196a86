"""What vLLM's workers really hold; ``held`` runs inside them and takes the worker."""

from __future__ import annotations

from typing import Any


def held(worker: Any) -> dict[str, int]:
    """Bytes of the parameters, each storage once, of the cache that one longest request needs,
    and of one token in one layer of it."""
    specs = worker.get_kv_cache_spec().values()
    return {
        "parameters": parameters(worker.model_runner.model),
        "cache": sum(s.max_memory_usage_bytes(worker.vllm_config) for s in specs),
        "token": max(s.page_size_bytes // s.block_size for s in specs),
    }


def parameters(model: Any) -> int:
    return sum({p.data_ptr(): p.nbytes for p in model.parameters()}.values())


def watch_loading() -> list[int]:
    """Gets the bytes of parameters as they are loaded, before they are packed for a kernel."""
    from vllm.model_executor.model_loader import base_loader

    found: list[int] = []
    real = base_loader.process_weights_after_loading

    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(parameters(model))
        return real(model, *args, **kwargs)

    base_loader.process_weights_after_loading = watched
    return found
