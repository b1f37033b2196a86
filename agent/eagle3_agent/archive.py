"""Which archive this agent runs from, and the argv of another command of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: The folder that holds ``eagle3_agent/`` and ``__main__.py``.
ROOT = Path(__file__).resolve().parent.parent


def name() -> str:
    """The archive's hash as the console wrote it; ``dev`` when run from a source tree."""
    try:
        text = (ROOT / "ARCHIVE").read_text("ascii", errors="replace").strip()
    except OSError:
        return "dev"
    return text if text.isalnum() else "dev"


def command(*arguments: str) -> list[str]:
    """The argv that runs ``arguments`` as a command of this same archive.

    ``-E -s`` keep the caller's Python variables and user site out of a process
    that must behave the same on every host.
    """
    return [sys.executable, "-E", "-s", os.fspath(ROOT), *arguments]
