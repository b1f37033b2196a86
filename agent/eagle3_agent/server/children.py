"""Short-lived child processes of the daemon: bounded in time and output, gone when cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import processes

#: Bytes of a child's output that are looked at.
OUTPUT_MAX = 8 << 20


@dataclass(frozen=True)
class Answer:
    """``status`` is None when the time was over."""

    status: int | None
    stdout: bytes
    stderr: bytes

    def last_words(self) -> str:
        """The end of what it complained, or said."""
        for data in (self.stderr, self.stdout):
            lines = [line for line in data[-4000:].splitlines() if line.strip()]
            if lines:
                return processes.printable(lines[-1].strip())
        return "it said nothing"


async def ask(
    argv: list[str],
    *,
    stdin: bytes = b"",
    timeout: float,
    env: dict[str, str] | None = None,
    cwd: str = "/",
) -> Answer:
    """Run ``argv`` to its end; ended with all its children on timeout or when cancelled.

    Raises OSError when it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        # files, not pipes: a grandchild that keeps one open must not hold the answer up
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = await asyncio.wait_for(child.wait(), timeout)
        except asyncio.TimeoutError:
            pass
        finally:
            if child.returncode is None:
                end_tree(child.pid)
        out, complaint = (_read(f.fileno()) for f in files[1:])
    return Answer(status, out, complaint)


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, OUTPUT_MAX, max(0, size - OUTPUT_MAX))


def end_tree(pid: int) -> None:
    """Kill a child that is not waited for yet, and all below it."""
    for _ in range(3):  # once more for children born meanwhile
        for process in [*processes.descendants(pid), processes.read(pid)]:
            if process is not None and process.running:
                processes.send(process.identity, signal.SIGKILL)


def scratch(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A private folder for one report."""
    return tempfile.TemporaryDirectory(prefix=f"eagle3-{prefix}-")


def read_report(path: Path) -> bytes:
    """Raises OSError when the child left none."""
    with open(path, "rb") as file:
        return file.read(OUTPUT_MAX)
