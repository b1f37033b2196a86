"""What a shell offers for an argument when Tab is pressed: read here, never asked of a host."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argcomplete.completers import FilesCompleter

from . import profile_files
from .profile_settings import BY_KEY, Setting

#: Files and lines of an ssh configuration that are looked at: Tab must not wait.
_FILES = 32
_BYTES = 1 << 20


def targets(prefix: str, **_: Any) -> list[str]:
    """``local`` and the aliases of the user's ssh configuration, ``user@`` kept."""
    user, at, _typed = prefix.rpartition("@")
    found = [] if at else ["local"]
    config = Path("~/.ssh/config").expanduser()
    found += [f"{user}{at}{name}" for name in aliases(config)]
    return list(dict.fromkeys(found))


def aliases(config: Path) -> list[str]:
    """The names behind ``Host`` that are no patterns, in the files' order; never raises."""
    names: list[str] = []
    waiting, seen = [config], 0
    while waiting and seen < _FILES:
        seen += 1
        for word, values in _words(waiting.pop(0)):
            if word == "host":
                names += [v for v in values if not re.search(r"[*?!]", v)]
            elif word == "include":
                waiting += [Path(p) for v in values for p in _included(v, config.parent)]
    return names


def _words(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        word, *values = line.replace("=", " ", 1).split() or [""]
        if values and not word.startswith("#"):
            yield word.lower(), [v.strip('"') for v in values]


def _included(pattern: str, folder: Path) -> list[str]:
    """As ssh_config(5): ``~`` is the user's, a relative path lies in ``~/.ssh``."""
    return sorted(glob.glob(os.path.join(folder, os.path.expanduser(pattern))))


def profiles(prefix: str, **_: Any) -> list[str]:
    """Names that ``profiles list`` shows, then files."""
    names = [name for name, _ in profile_files.available()]
    return names + list(FilesCompleter(("toml",))(prefix))


def settings(prefix: str, **_: Any) -> list[str]:
    """``section.key=``, and behind the ``=`` the values that a setting can have."""
    key, is_value, _typed = prefix.partition("=")
    if not is_value:
        return [f"{key}=" for key in BY_KEY]
    chosen = BY_KEY.get(key)
    return [f"{key}={value}" for value in _values(chosen)] if chosen else []


def _values(setting: Setting) -> tuple[str, ...]:
    return ("true", "false") if setting.kind == "boolean" else setting.choices


def runs(prefix: str, **_: Any) -> list[str]:
    """A host is not asked when Tab is pressed, so only the word for its newest run."""
    return ["last"]
