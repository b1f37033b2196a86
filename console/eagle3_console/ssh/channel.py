"""One program on the other side: its pipes over one ssh channel, as bytes."""

from __future__ import annotations

import asyncio

import asyncssh

from eagle3_console.hosts import STDERR_KEPT

from .errors import translate

#: Seconds to wait for the other side to confirm a close.
_CLOSE = 2.0


class SshChannel:
    def __init__(self, process: asyncssh.SSHClientProcess[bytes], name: str) -> None:
        self._process = process
        self._name = name
        self._stderr = bytearray()
        self._drain = asyncio.create_task(self._keep_stderr())

    async def _keep_stderr(self) -> None:
        try:
            while data := await self._process.stderr.read(4096):
                self._stderr += data
                del self._stderr[:-STDERR_KEPT]
        except (asyncssh.Error, OSError):
            pass  # the reader of standard output is told

    async def read(self, limit: int = 65536) -> bytes:
        try:
            return await self._process.stdout.read(limit)
        except (asyncssh.Error, OSError) as error:
            raise translate(error, self._name) from None

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError) as error:
            raise translate(error, self._name) from None

    def stderr_tail(self) -> bytes:
        return bytes(self._stderr)

    async def exit_status(self) -> int | None:
        await self._process.wait_closed()
        return self._process.returncode

    async def close(self) -> None:
        self._process.close()
        try:
            await asyncio.wait_for(self._process.wait_closed(), _CLOSE)
        except asyncio.TimeoutError:
            pass  # a frozen host answers no close; dropping the connection is the host's to do
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)
