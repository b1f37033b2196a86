"""A sample file read back: is it what its format promises, and whose tokens are in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import OutputFormat

from .engines.base import Sample
from .manifest import Entry


class StoredError(Exception):
    """What is wrong with a file, in words."""


@dataclass(frozen=True)
class Stored:
    """Memory-mapped: only what is touched is read."""

    input_ids: Any
    """int64 ``[S]``."""
    loss_mask: Any
    """int64 ``[S]``, or None where the format has none."""
    states: list[Any]
    """One ``[S, H]`` tensor per entry of the layer list."""


def load(path: Path, kind: OutputFormat) -> Stored:
    """Raises StoredError for anything that is not such a file."""
    try:
        return _load_pt(path) if kind == "speculators-pt" else _load_safetensors(path)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise StoredError(f"has another layout: {type(error).__name__} {error}") from error
    except Exception as error:  # torch and safetensors raise many types for broken bytes
        first = str(error).strip().split("\n")[0]
        raise StoredError(f"cannot be loaded: {first[:200]}") from error


def _load_pt(path: Path) -> Stored:
    import torch

    body = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
    return Stored(body["input_ids"], body["loss_mask"], list(body["hidden_states"]))


def _load_safetensors(path: Path) -> Stored:
    from safetensors.torch import load_file

    body = load_file(path)
    return Stored(body["token_ids"], None, list(body["hidden_states"].unbind(dim=1)))


def check(stored: Stored, entry: Entry, sample: Sample) -> str:
    """Why the file does not fit its manifest line and its row; "" when it does."""
    if stored.input_ids.tolist() != list(sample.input_ids):
        return "its token ids are not those of the data"
    if stored.loss_mask is not None and stored.loss_mask.tolist() != list(sample.loss_mask):
        return "its loss mask is not that of the data"
    shapes = [tuple(state.shape) for state in stored.states]
    if shapes != [(len(sample.input_ids), entry.hidden)] * entry.layers:
        return f"its states have the shapes {shapes}"
    dtypes = {str(state.dtype).removeprefix("torch.") for state in stored.states}
    if dtypes != {entry.dtype}:
        return f"its states are {', '.join(sorted(dtypes))}, the manifest says {entry.dtype}"
    return ""


def finite(stored: Stored) -> bool:
    import torch

    return all(bool(torch.isfinite(state).all()) for state in stored.states)
