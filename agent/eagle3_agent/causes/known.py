"""Failures that are known: what each means, and what to do about it; pure."""

from __future__ import annotations

from . import known_devices, known_files, known_models, known_processes
from .found import Raised
from .kinds import Known

#: What is special stands before what is general.
KNOWN: tuple[Known, ...] = (
    *known_devices.KNOWN,
    *known_files.KNOWN,
    *known_models.KNOWN,
    *known_processes.KNOWN,
)


def recognise(raised: Raised) -> Known | None:
    """The first kind that fits."""
    text = f"{raised.type}: {raised.message}"[:8000]
    for known in KNOWN:
        if known.pattern.search(text) and _fits_frames(known, raised):
            return known
    return None


def _fits_frames(known: Known, raised: Raised) -> bool:
    if known.frames is None:
        return True
    return any(known.frames.search(frame.file) for frame in raised.frames)
