"""What the console keeps of a person's choices between two sessions: the theme.

One small JSON file among the user's own; a file that cannot be read counts as none.
"""

from __future__ import annotations

import json
from pathlib import Path

from . import home
from .replacing import replace

#: More than this (bytes) was not written by the console.
_MOST = 64 * 1024


def path() -> Path:
    return home.config_dir() / "console.json"


def theme() -> str:
    """The name of the theme that was chosen last; empty when none was."""
    chosen = _read().get("theme")
    return chosen if isinstance(chosen, str) else ""


def remember_theme(name: str) -> str:
    """Keep the choice; what stood in its way, in words, or nothing."""
    try:
        _write({**_read(), "theme": name})
    except OSError as error:
        return f"{path()} cannot be written: {error.strerror or error}"
    return ""


def _read() -> dict[str, object]:
    try:
        with path().open("rb") as file:
            found = json.loads(file.read(_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(values: dict[str, object]) -> None:
    """Raises OSError."""
    path().parent.mkdir(parents=True, exist_ok=True)
    replace(path(), json.dumps(values, indent=1).encode())
