"""Where the console keeps its files on this workstation.

``EAGLE3_HOME`` moves all of it, as it moves the agent's; otherwise the
platform's own convention holds (XDG on Linux), read through platformdirs.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "eagle3"


def settle() -> None:
    """Make a relative ``EAGLE3_HOME`` absolute, for this process and all that it starts.

    Whoever changes the folder later (the daemon does) must not take the files elsewhere.
    """
    home = os.environ.get("EAGLE3_HOME")
    if home:
        os.environ["EAGLE3_HOME"] = os.path.abspath(os.path.expanduser(home))


def _base(kind: str, fallback: str) -> Path:
    home = os.environ.get("EAGLE3_HOME")
    return Path(home) / kind if home else Path(fallback)


def config_dir() -> Path:
    """The user's own files: ``profiles/`` lies here."""
    return _base("config", platformdirs.user_config_dir(_APP, appauthor=False))


def cache_dir() -> Path:
    """Things that can be made again: the demo's environment and model."""
    return _base("cache", platformdirs.user_cache_dir(_APP, appauthor=False))


def state_dir() -> Path:
    """Saved traces of the console's own faults."""
    return _base("state", platformdirs.user_state_dir(_APP, appauthor=False))


def user_profiles_dir() -> Path:
    return config_dir() / "profiles"


def shipped_profiles_dir() -> Path | None:
    """The profiles that came with the console: inside a wheel, or the checkout's own folder."""
    here = Path(__file__).resolve().parent
    for folder in (here / "profiles", here.parent.parent / "profiles"):
        if folder.is_dir():
            return folder
    return None
