"""A small agent that speaks the real wire, so that links can be tested without a GPU host.

It is shipped by the real deploy code: what is fake is only what runs at the end.
Its streams are plain files ``<EAGLE3_HOME>/streams/<run>.<stream>``; a file
``<…>.ended`` beside one says that the run has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import eagle3_agent
from eagle3_console.archive import Archive, build_archive
from eagle3_console.hosts import Channel, Host
from eagle3_console.link import Link
from eagle3_console.linkstate import LinkState, Piece
from eagle3_console.local import LocalHost

FAKE_AGENT = b"""
import json, os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from eagle3_agent.protocol import VERSION, decode_message, encode
from eagle3_agent.protocol.messages import *
from eagle3_agent.protocol.values import HostSample, Problem, Report, RunSummary, Samples

root = os.environ["EAGLE3_HOME"]
knobs = {}
try:
    with open(os.path.join(root, "knobs.json")) as file:
        knobs = json.load(file)
except FileNotFoundError:
    pass
archive = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ARCHIVE")).read().strip()
lock = threading.Lock()
dropped = set()

def send(message):
    with lock:
        data = encode(message)
        while data:
            data = data[os.write(1, data):]

def summary():
    return RunSummary("0001", 1, "running", 1, "p", "transformers", 1.0, None, Samples(), 0, None,
                      0, "/o")

def follow(message):
    path = os.path.join(root, "streams", message.run + "." + message.stream)
    offset = message.offset
    while message.id not in dropped:
        ended = os.path.exists(path + ".ended")
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(knobs.get("chunk", 5000))
            at_end = offset + len(data) == os.fstat(file.fileno()).st_size
        if data or (ended and at_end):
            send(Chunk.of(message.id, offset, data, at_end, ended and at_end))
            offset += len(data)
        if ended and at_end:
            return
        if not data:
            time.sleep(0.01)

def answer(message):
    number = message.id
    if isinstance(message, Hello):
        send(Welcome(number, knobs.get("version", VERSION), knobs.get("archive", archive),
                     os.getpid(), "fake", "3", 0.0, 0.0))
    elif isinstance(message, Ping):
        if not knobs.get("deaf"):
            send(Pong(number))
    elif isinstance(message, ListRuns):
        send(Runs(number, (summary(),)))
    elif isinstance(message, WatchHost):
        send(Done(number))
        if message.interval > 0:
            send(Telemetry(HostSample(1.0)))
    elif isinstance(message, Subscribe):
        send(Done(number))
        threading.Thread(target=follow, args=(message,), daemon=True).start()
    elif isinstance(message, Unsubscribe):
        dropped.add(message.sub)
        send(Done(number))
    elif isinstance(message, AgentStatus):
        send(Status(number, archive, os.getpid(), 0.0, root, 1, (), ()))
    elif isinstance(message, Abort):
        os._exit(3)
    elif isinstance(message, StopAgent):
        os.write(1, b"x" * (6 << 20))
    elif isinstance(message, GetCompat):
        time.sleep(60)
    elif isinstance(message, RunPreflight):
        send(Probing(number, 1, 3, ("gpu", "disk")))
        send(Probing(number, 2, 3, ("disk",)))
        if not message.deep:  # a deep one goes on until it is given up
            send(Checked(number, Report((), 0.5, 1.0)))
    elif isinstance(message, Cancel):
        with open(os.path.join(root, "cancelled"), "a") as file:
            file.write(str(message.asked) + " ")
        send(Done(number))
        send(Refused(message.asked, Problem("Given up", "", "", "refused")))
    else:
        send(Refused(number, Problem("No", "not here", "go on", "not-found")))

if knobs.get("die"):
    sys.exit("Traceback\\nImportError: no module named nothing")
if knobs.get("problem"):
    os.write(1, b"EAGLE3-AGENT error " + json.dumps(knobs["problem"]).encode() + b"\\n")
    sys.exit(1)
os.write(1, b"EAGLE3-AGENT ready " + archive.encode() + b"\\n")
buffer = b""
while True:
    data = os.read(0, 65536)
    if not data:
        break
    buffer += data
    *lines, buffer = buffer.split(b"\\n")
    for line in lines:
        answer(decode_message(line))
"""


def fake_archive(salt: str = "") -> Archive:
    """The fake agent and the real protocol; another salt is another archive."""
    package = Path(eagle3_agent.__file__).parent
    members = {
        f"eagle3_agent/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in (package / "protocol").glob("*.py")
    }
    members["eagle3_agent/__init__.py"] = b""
    members["__main__.py"] = FAKE_AGENT + f"# {salt}\n".encode()
    return build_archive(members)


class CountingHost:
    """Any host, counting the programs that were started and keeping the last channel."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.name = host.name
        self.python = host.python
        self.notices = host.notices
        self.execs = 0
        self.channel: Channel | None = None
        self.refuse: Exception | None = None
        """Raised by ``open`` while set."""

    async def open(self, argv0: str = "/bin/sh") -> Channel:
        if self.refuse is not None:
            raise self.refuse
        self.execs += 1
        self.channel = await self._host.open(argv0)
        return self.channel

    async def close(self) -> None:
        await self._host.close()


def local_host(home: Path, **env: str) -> CountingHost:
    return CountingHost(LocalHost({**os.environ, "EAGLE3_HOME": str(home), **env}))


def noise(size: int, seed: int) -> bytes:
    """Bytes of every value, the same each time."""
    return random.Random(seed).randbytes(size)  # noqa: S311


class FakeRun:
    """A stream's file in the fake agent's home."""

    def __init__(self, home: Path, run: str = "0001", stream: str = "output") -> None:
        folder = home / "streams"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{run}.{stream}"
        self.path.touch()

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def end(self) -> None:
        Path(f"{self.path}.ended").touch()


def set_knobs(home: Path, **knobs: object) -> None:
    """Change how the next fake agent behaves."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "knobs.json").write_text(json.dumps(knobs))


@asynccontextmanager
async def linked(
    host: Host, archive: Archive | None = None, states: list[LinkState] | None = None
) -> AsyncIterator[Link]:
    """A connected link that is closed at the end."""
    link = Link(host, on_state=None if states is None else states.append, archive=archive)
    try:
        await link.connect()
        yield link
    finally:
        await link.close()


async def until(check: Callable[[], bool], what: str, timeout: float = 15.0) -> None:
    """Wait until ``check`` holds, letting the loop run; fails by name."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not check():
        assert loop.time() < deadline, f"not within {timeout:.0f} s: {what}"
        await asyncio.sleep(0.01)


async def read_all(
    pieces: AsyncIterator[Piece], each: Callable[[Piece], Awaitable[None]] | None = None
) -> bytes:
    """A stream to its end, checking that every piece begins where the last one stopped."""
    got = b""
    start: int | None = None
    async for piece in pieces:
        start = piece.offset if start is None else start
        assert piece.offset == start + len(got), "a gap or a repeat"
        got += piece.data
        if each is not None:
            await each(piece)
    return got
