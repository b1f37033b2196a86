"""Text for elsewhere: the terminal's clipboard, and files on this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from textual.app import App

from . import home

#: Bytes that every terminal with OSC 52 takes; tmux and xterm refuse more than about this.
_CLIPBOARD_MOST = 74_000


def copied(app: App[int], text: str, what: str) -> str:
    """Copy through OSC 52, and into a file since no terminal says whether it took it.

    What to tell the reader.
    """
    data = text.encode("utf-8", "replace")
    file = saved("copied.txt", [data], keep=False)
    if len(data) > _CLIPBOARD_MOST:
        return f"{what} are too long for a clipboard: {file}"
    app.copy_to_clipboard(data.decode("utf-8"))
    return f"Copied {what}. If the terminal knows no OSC 52: {file}"


def saved(name: str, pieces: Iterable[bytes], *, keep: bool = True) -> str:
    """Write a file that only this user can read; where it is, or why there is none, in words.

    With ``keep`` its name gets the time, so that no earlier one is lost.
    """
    stem, dot, end = re.sub(r"[^\w.-]", "-", name)[-80:].lstrip(".-").rpartition(".")
    stamp = time.strftime("-%Y%m%d-%H%M%S") if keep else ""
    path = home.state_dir() / "saved" / f"{stem}{stamp}{dot}{end}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return f"{_short(path)}"


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
