"""What bounds a sample: by the model, and by the profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Limits:
    """What bounds a sample."""

    vocab: int
    seq_length: int
    max_model_len: int
    max_samples: int | None = None
    too_long: Literal["truncate", "skip"] = "truncate"
    """What becomes of more than ``seq_length`` tokens."""
