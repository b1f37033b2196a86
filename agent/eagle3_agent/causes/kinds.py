"""What a known kind of failure is made of; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """One kind of failure; ``pattern`` is searched in ``Type: message``."""

    id: str
    pattern: re.Pattern[str]
    means: str
    todo: str
    frames: re.Pattern[str] | None = None
    """Where set, a file of the traceback must match as well."""


def known(id: str, pattern: str, means: str, todo: str, frames: str = "") -> Known:
    """``pattern`` and ``frames`` as text; case does not matter in the pattern."""
    files = re.compile(frames) if frames else None
    return Known(id, re.compile(pattern, re.IGNORECASE), means, todo, files)
