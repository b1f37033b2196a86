"""What vLLM's workers really hold; functions that tests run inside them, each takes the worker."""

from __future__ import annotations

import os
from typing import Any


def held(worker: Any) -> dict[str, Any]:
    """Bytes of parameters and buffers, each storage once, and of a token in the KV cache."""
    model = worker.model_runner.model
    parameters = {p.data_ptr(): p.nbytes for p in model.parameters()}
    buffers = {b.data_ptr(): b.nbytes for b in model.buffers() if b.data_ptr() not in parameters}
    specs = worker.get_kv_cache_spec().values()
    return {
        "parameters": sum(parameters.values()),
        "buffers": sum(buffers.values()),
        "cache": sum(s.max_memory_usage_bytes(worker.vllm_config) for s in specs),
        "token": max(s.page_size_bytes // s.block_size for s in specs),
        "block": max(s.block_size for s in specs),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "largest": sorted(((p.nbytes, name) for name, p in model.named_parameters()), reverse=True)[
            :8
        ],
    }
