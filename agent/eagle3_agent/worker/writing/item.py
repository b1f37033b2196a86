"""What a capturing process hands to its writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class States:
    """The states of one sample where they lie in host memory: a tensor without torch."""

    data: memoryview
    """The bytes of a contiguous tensor, little-endian."""
    shape: tuple[int, ...]
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``."""
    offset: int | None = None
    """Where ``data`` begins in the memory that the pool's writers share; None for memory of this
    process alone."""

    @property
    def nbytes(self) -> int:
        return len(self.data)

    @classmethod
    def of(cls, tensor: Any, offset: int | None = None) -> States:
        """``tensor``: contiguous, on the CPU; its memory is not copied."""
        import torch

        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        return cls(data, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset)


@dataclass(eq=False)
class Item:
    """One captured sample on its way to the disk."""

    index: int
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    states: States
    """In memory that nobody writes to until ``release``: as ``layout`` says ``[L, S, H]`` or
    ``[S, L, H]``, L as asked, repeats repeated."""
    ready: Callable[[], None]
    """Blocks until the bytes are there; may raise.  Called by a thread of the pool."""
    release: Callable[[], None]
    """Called exactly once, whatever happens, when the bytes are no longer needed."""
