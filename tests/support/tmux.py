"""A terminal that can be read: tmux with a server of its own, below a test's folder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import needs


def require_tmux() -> None:
    """Skip where tmux is missing; in CI that is a failure."""
    if not shutil.which("tmux"):
        needs.missing("tmux is not installed (Debian: tmux)")


class Screen:
    """One program on a terminal of ``columns`` x ``rows``; the pane stays when it has ended."""

    def __init__(
        self, folder: Path, argv: Sequence[str], env: dict[str, str], columns: int, rows: int
    ) -> None:
        self._socket = folder / "tmux.sock"
        self._env = {**env, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        self._env.pop("TMUX", None)
        self._status = folder / "exit-status"
        command = f"{shlex.join(argv)}; echo $? > {shlex.quote(str(self._status))}; cat"
        size = ("-x", str(columns), "-y", str(rows))
        self._tmux("new-session", "-d", *size, command)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", str(self._socket), *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def text(self) -> str:
        """What is on the screen now."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: a letter, ``Enter``, ``Escape``."""
        self._tmux("send-keys", *keys)

    def shows(self, pattern: str, within: float = 30.0) -> str:
        """The screen once the regular expression is on it; fails with what is there instead."""
        deadline = time.monotonic() + within
        while True:
            text = self.text()
            assert "Traceback" not in text, text
            if re.search(pattern, text):
                return text
            if time.monotonic() > deadline:
                pytest.fail(f"{pattern!r} did not appear within {within:.0f} s:\n{text}")
            time.sleep(0.1)

    def exit_status(self, within: float = 20.0) -> int:
        deadline = time.monotonic() + within
        while not (self._status.exists() and self._status.read_text().strip()):
            assert time.monotonic() < deadline, f"it did not end:\n{self.text()}"
            time.sleep(0.05)
        return int(self._status.read_text())

    def close(self) -> None:
        """End this server and its program; no other tmux hears of it."""
        subprocess.run(
            ["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, timeout=20
        )
