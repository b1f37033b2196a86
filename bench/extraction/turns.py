"""Starting sides and giving them their turns; standard library alone.

A side that is not on turn is stopped by signal, since idle engines spin.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .spec import Spec

ROOT = Path(__file__).resolve().parents[2]

#: What an engine needs where there is no hub.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "PYTHONUNBUFFERED": "1",
}


class SideFailed(Exception):
    """A side ended, hung or said that it failed; in words, with the end of its log."""


class Running:
    """One side's process and everything that it started."""

    def __init__(
        self,
        python: str,
        spec: Spec,
        log: Path,
        variables: Mapping[str, str],
        path: tuple[str, ...] = (),
    ) -> None:
        """Starts it; ``path`` goes before the agent and this checkout on its PYTHONPATH."""
        self.spec, self._log = spec, log
        paths = [*path, str(ROOT / "agent"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, **OFFLINE, **variables}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [python, "-m", "bench.extraction.side"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=env,
                cwd=log.parent,
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._send(spec.line())

    def ready(self, seconds: float) -> dict[str, Any]:
        """What the side says of itself, once it has loaded."""
        found: dict[str, Any] = self._answer(seconds)["ready"]
        return found

    def round(self, seconds: float) -> dict[str, Any]:
        """A ``spec.Round`` as JSON values, with ``cpu``: processor seconds of all its processes."""
        self._signal(signal.SIGCONT)
        before = processor_seconds(self._process.pid)
        self._send("go")
        found = self._answer(seconds)
        return {**found, "cpu": processor_seconds(self._process.pid) - before}

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def end(self, seconds: float = 20.0) -> None:
        """Let it close, then see that nothing of it is left."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._send("end")
            self._process.wait(seconds)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        try:
            line = self._answers.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            raise SideFailed(f"no answer within {seconds:.0f} s; {self._tail()}") from None
        if not line:
            code = self._process.wait()
            raise SideFailed(f"ended with status {code}; {self._tail()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise SideFailed(f"{found['error']}; {self._tail()}")
        return found

    def _tail(self) -> str:
        return f"its log ends: {self._log.read_text(errors='replace')[-1500:]}"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def processor_seconds(group: int) -> float:
    """User and system time of the living processes of a process group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
