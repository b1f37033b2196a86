"""The devices of an exercise: CUDA's in the preflight, the CPU where a test asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

Kind = Literal["cuda", "cpu"]


class NoDevice(Exception):
    """Why there is nothing to exercise, in words."""


def require(kind: Kind, count: int) -> None:
    """Raises NoDevice where torch does not see ``count`` devices."""
    import torch

    if kind == "cpu":
        return
    if torch.version.cuda is None:
        raise NoDevice(f"torch {torch.__version__} is built without CUDA")
    seen = torch.cuda.device_count()
    if seen < count or not torch.cuda.is_available():
        raise NoDevice(f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees {seen} GPUs")


def at(kind: Kind, index: int = 0) -> Any:
    import torch

    return torch.device(kind, index) if kind == "cuda" else torch.device("cpu")


def wait(device: Any) -> None:
    """Until the device has done what it was told."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: Any, act: Callable[[], object], times: int) -> float:
    """Of ``times`` calls of ``act``: by CUDA's events on a GPU, by the clock on the CPU."""
    import torch

    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(times):
            act()
        return time.perf_counter() - began
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            act()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
