"""What the engines over vLLM ask of the machine: its devices' name, host memory to pin."""

from __future__ import annotations

from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.writing import bounds

from .base import Loaded


def devices(count: int) -> str:
    """What ``count`` devices of vLLM's platform are called."""
    from vllm.platforms import current_platform

    name = str(current_platform.get_device_name())
    return name if count == 1 else f"{count} x {name}"


def buffer_bytes(profile: Profile, loaded: Loaded) -> int:
    """Host memory to pin while the model is loaded, rather than when samples wait for it."""
    token = len(profile.capture.layers) * loaded.hidden * model_info.ITEM_SIZE[loaded.dtype]
    longest = min(profile.data.seq_length, profile.model.max_model_len) * token
    return profile.output.buffer_bytes or bounds.buffer_bytes(longest)
