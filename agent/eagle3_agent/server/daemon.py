"""The daemon's process: one per user and host, its lock, socket, log, and how it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from eagle3_agent import archive, paths, runs
from eagle3_agent.protocol import MAX_LINE

from . import requests
from .agent import Agent
from .client import Client
from .host_feed import SILENCE
from .launch import Launcher
from .lease import Lease, lease_path, lock_path, log_path

#: Seconds without client, run or queue after which it leaves.
IDLE = 3600.0

#: The log is begun anew past this size (bytes); the one before is kept as ``agent.log.1``.
LOG_MAX = 1 << 20

#: Seconds that clients get to read their last replies when the daemon leaves.
_LEAVE = 2.0


class Held(Exception):
    """Another daemon of this user runs on this host."""


def serve(ready: Callable[[], None], idle: float = IDLE, silence: float = SILENCE) -> None:
    """Be the daemon until stopped; ``ready`` is called once it can be connected to.

    ``idle``: seconds of disuse after which it leaves; ``silence``: seconds after which telemetry
    is taken to hang.

    Raises Held, or OSError when its folder is not usable.
    """
    paths.private_dir(paths.agent_dir())
    lock = _take_lock()
    try:
        asyncio.run(_serve(ready, idle, silence))
    finally:
        with contextlib.suppress(FileNotFoundError):
            lease_path().unlink()
        os.close(lock)


def _take_lock() -> int:
    fd = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Held from None
    return fd


async def _serve(ready: Callable[[], None], idle: float, silence: float) -> None:
    runs.write_value(lease_path(), Lease(os.getpid(), archive.name(), time.time()))
    agent = Agent(idle, silence)
    launcher = Launcher(agent)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    door = _Door(requests.Desk(agent, launcher))
    await door.open()
    ready()
    agent.log(f"agent {archive.name()[:16]} serves as pid {os.getpid()}")
    loops = (agent.tick(launcher.look_after), agent.feed.run(), door.watch())
    work: list[asyncio.Task[None]] = [asyncio.create_task(loop) for loop in loops]
    stopped = asyncio.create_task(agent.stopping.wait())
    await asyncio.wait([*work, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in work:
        if task.done() and not task.cancelled() and task.exception():
            agent.log_fault("the agent's loop ended", task.exception())  # type: ignore[arg-type]
    for task in work:
        task.cancel()
    stopped.cancel()
    await asyncio.gather(*work, stopped, return_exceptions=True)
    await door.close()
    agent.log("agent left")


class _Door:
    """The socket: opened with mode 0600, opened again when somebody swept it away."""

    def __init__(self, desk: requests.Desk) -> None:
        self._agent = desk.agent
        self._answers = functools.partial(requests.answer, desk)
        self._path = paths.socket_path()
        self._server: asyncio.AbstractServer | None = None
        self._inode = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        paths.private_dir(self._path.parent)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh = self._path.with_name(f".{self._path.name[0]}{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        before = os.umask(0o177)
        try:
            listener.bind(os.fspath(fresh))
        finally:
            os.umask(before)
        listener.listen(64)
        listener.setblocking(False)
        # listening before it has its name: whoever finds the name can connect
        os.replace(fresh, self._path)
        self._inode = self._path.lstat().st_ino
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listener, limit=MAX_LINE
        )

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            _bound_log()
            try:
                there = self._path.lstat().st_ino == self._inode
            except FileNotFoundError:
                there = False
            if not there:
                self._agent.log("the socket was removed: opened again")
                if self._server is not None:
                    self._server.close()
                await self.open()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._run(Client(self._agent, self._answers, reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, client: Client) -> None:
        self._agent.clients.add(client)
        try:
            await client.run()
        finally:
            self._agent.clients.discard(client)

    async def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        if self._server is not None:
            self._server.close()
        for client in list(self._agent.clients):
            client.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE)
        for task in self._tasks:
            task.cancel()


def _bound_log() -> None:
    """Begin the log anew when it is large, if standard error is the log."""
    with contextlib.suppress(OSError):
        size, mine = log_path().stat(), os.fstat(2)
        if (size.st_dev, size.st_ino) == (mine.st_dev, mine.st_ino) and size.st_size > LOG_MAX:
            os.replace(log_path(), log_path().with_name("agent.log.1"))
            fd = open_log()
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.close(fd)


def open_log() -> int:
    """The log, to append to; begun anew when it is large."""
    with contextlib.suppress(FileNotFoundError):
        if log_path().stat().st_size > LOG_MAX:
            os.replace(log_path(), log_path().with_name("agent.log.1"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(log_path(), flags, 0o600)


def detach() -> None:
    """Leave the caller's session and process tree; standard streams go to the log and nowhere."""
    paths.private_dir(paths.agent_dir())
    fd = open_log()
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    sys.stdout.flush()
    os.dup2(null, 0)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    os.close(null)
