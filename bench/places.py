"""Folders and hosts that benchmarks run in: nothing of the user's is read or written."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from eagle3_agent import paths
from eagle3_agent.protocol.messages import StopAgent
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)
from eagle3_agent.runs import RunFolder, RunRecord
from eagle3_console.errors import ConsoleError
from eagle3_console.hosts import Host
from eagle3_console.link import Link
from eagle3_console.local import LocalHost

VARIABLE = "EAGLE3_HOME"


@contextmanager
def own_home() -> Iterator[Path]:
    """A fresh EAGLE3_HOME for this process and its children; removed at the end."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="eagle3-bench-") as folder:
        os.environ[VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


@asynccontextmanager
async def linked(host: Host | None = None) -> AsyncIterator[Link]:
    """A link to a daemon of its own, which is told to leave at the end."""
    link = Link(host or LocalHost())
    try:
        welcome = await link.connect()
        try:
            yield link
        finally:
            await _stop(link, welcome.pid)
    finally:
        await link.close()


async def _stop(link: Link, pid: int) -> None:
    """End the daemon, also where an interrupt has ended the link's own tasks."""
    try:
        await link.ask(StopAgent(0), timeout=3)
    except ConsoleError:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if os.fsencode(os.environ[VARIABLE]) in words:  # started from this benchmark's folder
            os.kill(pid, signal.SIGTERM)
    await link.close()
    await _gone(pid)


async def _gone(pid: int) -> None:
    """Wait until the daemon, which was told to leave, no longer writes into its folder."""
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists():
            return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"the agent (pid {pid}) did not leave within 10 s")


@asynccontextmanager
async def ending(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """No child outlives an interrupted benchmark."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def profile(output: Path) -> Profile:
    """Of the size that a user's own profile has."""
    return Profile(
        name="bench",
        host=HostSection(python="/opt/venv/bin/python", env={"OMP_NUM_THREADS": "8"}),
        model=ModelSection(path="/models/base", tensor_parallel_size=8),
        capture=CaptureSection((2, 30, 58, 60)),
        data=DataSection(path="/data/conversations.jsonl", max_samples=1000),
        output=OutputSection(dir=str(output)),
    )


def record(number: int, asked: Profile, engine: str = "transformers") -> RunRecord:
    """``run.json`` of run ``number``."""
    return RunRecord(
        format=1,
        run=f"{number:04d}",
        number=number,
        attempt=1,
        created=1_700_000_000.0 + number,
        host=os.uname().nodename,
        profile=asked,
        engine=engine,
        environment={"vllm": "0.16.0", "torch": "2.9.1", "driver": "570.86"},
    )


def run_folder(number: int) -> RunFolder:
    """The folder of run ``number`` in this process's EAGLE3_HOME; made, and empty."""
    root = paths.private_dir(paths.runs_dir())
    folder = RunFolder(root / f"{number:04d}")
    folder.path.mkdir(mode=0o700)
    return folder
