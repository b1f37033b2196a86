"""What a capturing process hands to its writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Item:
    """One captured sample on its way to the disk."""

    index: int
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    states: Any
    """CPU tensor, contiguous, in memory that nobody writes to until ``release``: as ``layout``
    says ``[L, S, H]`` or ``[S, L, H]``, L as asked, repeats repeated."""
    ready: Callable[[], None]
    """Blocks until the bytes are there; may raise.  Called by a writer thread."""
    release: Callable[[], None]
    """Called exactly once, whatever happens, when the bytes are no longer needed."""
