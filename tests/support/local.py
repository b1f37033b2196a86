"""The real command line as processes, on target ``local``, in a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .cli import Ran

_LIMIT = 240.0


class Local:
    """Runs commands; ``close`` ends the agent and any run that a test left behind."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.env = {**os.environ, "EAGLE3_HOME": str(home)}

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        """The command as a process of its own, to be interrupted or read from."""
        defaults: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": _heed_interrupts,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "eagle3_console.cli", *argv],
            text=True,
            env=self.env,
            cwd=self.folder,
            **{**defaults, **options},
        )

    def run(self, *argv: str) -> Ran:
        with self.start(*argv) as process:
            try:
                out, err = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert "Traceback" not in out + err, err
        return Ran(process.returncode, out, err)

    def profile(self, name: str = "job", **settings: str) -> str:
        """A profile file from ``section__key=TOML`` arguments; its path."""
        sections: dict[str, list[str]] = {}
        for key, value in settings.items():
            section, _, setting = key.partition("__")
            sections.setdefault(section, []).append(f"{setting} = {value}")
        path = self.folder / f"{name}.toml"
        path.write_text(
            "\n".join("\n".join([f"[{section}]", *lines]) for section, lines in sections.items())
        )
        return str(path)

    def close(self) -> None:
        for run in self.run("runs", "local", "--json").object["runs"]:
            if run["state"] in ("running", "queued"):
                self.run("abort", "local", run["run"], "--yes")
        self.run("agent", "stop", "local")


def job(python: Path, model: Path, data: Path, output: Path) -> dict[str, str]:
    """Settings of a small run on the CPU, for ``Local.profile``."""
    return {
        "host__python": json.dumps(str(python)),
        "model__path": json.dumps(str(model)),
        "capture__layers": "[1, 3, 5]",
        "data__path": json.dumps(str(data)),
        "output__dir": json.dumps(str(output)),
        "engine__name": '"transformers"',
    }


def _heed_interrupts() -> None:
    """In the child: tests that a shell began in its background inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
