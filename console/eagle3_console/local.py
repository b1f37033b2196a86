"""The target ``local``: the agent as a child of this machine, over the same pipes as ssh."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process, SubprocessStreamProtocol

from .hosts import STDERR_KEPT, Channel, connect_error

#: How long a program may take to leave after its standard input is closed, in seconds.
_LEAVE = 2.0
_BUFFER = 256 * 1024


class LocalHost:
    """This machine, without ssh."""

    def __init__(self, env: dict[str, str] | None = None, python: str | None = None) -> None:
        self.name = "local"
        self.python: str | None = python or sys.executable
        self.notices: tuple[str, ...] = ()
        self._env = env
        self._channels: list[_LocalChannel] = []

    async def open(self, argv0: str = "/bin/sh") -> Channel:
        loop = asyncio.get_running_loop()
        try:
            # create_subprocess_exec hides the transport, and only closing that lets go of pipes
            # that a grandchild holds or that nobody reads
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(limit=_BUFFER, loop=loop),
                argv0,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                # Ctrl-C in the console's terminal must not reach what runs for the agent
                start_new_session=True,
            )
        except OSError as error:
            raise connect_error(
                f"{argv0} cannot be started on this machine",
                error.strerror or type(error).__name__,
                "Target `local` needs a POSIX shell at this path.",
            ) from None
        channel = _LocalChannel(Process(transport, protocol, loop), transport)
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.close()


class _LocalChannel:
    def __init__(self, process: Process, transport: asyncio.SubprocessTransport) -> None:
        self._process = process
        self._transport = transport
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._keep_stderr())

    async def _keep_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._stderr += data
            del self._stderr[:-STDERR_KEPT]

    async def read(self, limit: int = 65536) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(limit)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):
            raise connect_error(
                "The agent's process is gone",
                "It closed its standard input.",
                "The console starts it again by itself.",
            ) from None

    def stderr_tail(self) -> bytes:
        return bytes(self._stderr)

    async def exit_status(self) -> int | None:
        status = await self._process.wait()
        await asyncio.wait({self._drain}, timeout=_LEAVE)
        return status

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        rest = asyncio.create_task(self._read_rest())
        await asyncio.wait({rest}, timeout=_LEAVE)
        rest.cancel()
        self._drain.cancel()
        await asyncio.gather(rest, self._drain, return_exceptions=True)
        if self._transport.get_returncode() is None:
            self._kill()
        self._transport.close()

    async def _read_rest(self) -> None:
        """Let the program leave by itself: it may be stuck in a write that nobody reads."""
        while await self.read():
            pass
        await self._process.wait()

    def _kill(self) -> None:
        # a child that is not yet reaped keeps its pid, so this cannot hit another process; the
        # daemon is in a session of its own and stays
        try:
            os.kill(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
