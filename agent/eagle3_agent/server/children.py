"""Short-lived child processes of the daemon: bounded in time and output, gone when cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import ending, processes

#: Bytes of a child's output that are looked at.
OUTPUT_MAX = 8 << 20

#: Seconds between two looks at the output of a child whose lines are waited for.
_GLANCE = 0.1

OnLine = Callable[[bytes], Awaitable[None]]


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
    on_line: OnLine | None = None,
) -> Answer:
    """Run ``argv`` to its end; ended with all its children on timeout or when cancelled.

    ``on_line`` is given each whole line of its output while it goes on; what it raises ends the
    child.  Raises OSError when it cannot be started.
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
            status = await asyncio.wait_for(_end_of(child, files[1].fileno(), on_line), timeout)
        except asyncio.TimeoutError:
            pass
        finally:
            if child.returncode is None:
                end_tree(child.pid)
        out, complaint = (_read(f.fileno()) for f in files[1:])
    return Answer(status, out, complaint)


async def _end_of(child: Process, fd: int, on_line: OnLine | None) -> int:
    """The child's status once it ends; its lines are handed on meanwhile."""
    if on_line is None:
        return await child.wait()
    end = asyncio.ensure_future(child.wait())
    offset = 0
    try:
        while True:
            done, _ = await asyncio.wait({end}, timeout=_GLANCE)
            whole, line_end, _ = os.pread(fd, OUTPUT_MAX, offset).rpartition(b"\n")
            offset += len(whole) + len(line_end)
            for line in whole.split(b"\n") if line_end else ():
                await on_line(line)
            if done:
                return end.result()
    finally:
        end.cancel()


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, OUTPUT_MAX, max(0, size - OUTPUT_MAX))


def end_tree(pid: int) -> None:
    """Kill a child that is not waited for yet, and all below it."""
    ending.kill_tree(pid)


def scratch(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A private folder for one report."""
    return tempfile.TemporaryDirectory(prefix=f"eagle3-{prefix}-")


def read_report(path: Path) -> bytes:
    """Raises OSError when the child left none."""
    with open(path, "rb") as file:
        return file.read(OUTPUT_MAX)
