"""The bytes of a sample file, for either generation of the trainer."""

from __future__ import annotations

import json
import struct
from typing import Any

from eagle3_agent.protocol.values import OutputFormat

from .engines.base import Captured
from .writer import Rejected, Sink

_TAGS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def save(captured: Captured, kind: OutputFormat, dtype: str, file: Sink) -> None:
    """Write the whole file; raises Rejected for states that nobody may train on."""
    broken = _not_finite(captured.states)
    if broken is not None:
        raise Rejected(f"state {broken} holds NaN or infinity")
    if kind == "speculators-pt":
        _save_pt(captured, file)
    else:
        _save_safetensors(captured, dtype, file)


def _not_finite(states: tuple[Any, ...]) -> int | None:
    """Which state (by its place in the layer list) holds NaN or infinity; None for none."""
    import torch

    return next((i for i, s in enumerate(states) if not bool(torch.isfinite(s).all())), None)


def _own(states: tuple[Any, ...]) -> list[Any]:
    """Tensors with a storage of exactly their own: ``torch.save`` writes whole storages."""
    seen: set[int] = set()
    made = []
    for state in states:
        state = state.contiguous()
        shared = state.untyped_storage().data_ptr() in seen
        if shared or state.untyped_storage().nbytes() != state.numel() * state.element_size():
            state = state.clone()
        seen.add(state.untyped_storage().data_ptr())
        made.append(state)
    return made


def _save_pt(captured: Captured, file: Sink) -> None:
    """``data_{i}.pt`` as speculators 0.3 and 0.4 train from it."""
    import torch

    sample = captured.sample
    body = {
        "input_ids": torch.tensor(list(sample.input_ids), dtype=torch.long),
        "hidden_states": _own(captured.states),
        "loss_mask": torch.tensor(list(sample.loss_mask), dtype=torch.long),
    }
    torch.save(body, file)


def _save_safetensors(captured: Captured, dtype: str, file: Sink) -> None:
    """``hs_{i}.safetensors`` as speculators 0.5 and later read it: states ``[S, L, H]``, ids.

    The format is a length, a JSON header and the tensors' bytes; written here, so that it is
    hashed on the way and never held twice.
    """
    import torch

    states = torch.stack(list(captured.states), dim=1)
    ids = torch.tensor(list(captured.sample.input_ids), dtype=torch.long)
    size, end = ids.numel() * 8, ids.numel() * 8 + states.numel() * states.element_size()
    header = json.dumps(
        {
            "token_ids": {"dtype": "I64", "shape": list(ids.shape), "data_offsets": [0, size]},
            "hidden_states": {
                "dtype": _TAGS[dtype],
                "shape": list(states.shape),
                "data_offsets": [size, end],
            },
        }
    ).encode("ascii")
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header)
    file.write(ids.numpy())
    file.write(states.view(torch.uint8).numpy())
