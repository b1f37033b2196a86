"""A slow way to a host: a relay that hands bytes on late, in both directions.

The kernel's own netem is not built into every kernel, so this delays what TCP carries instead:
every chunk, the handshake's time included, order kept, nothing lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """``delay`` in seconds each way; ``frozen`` holds everything back until it is let go."""

    def __init__(self, port: int, delay: float) -> None:
        self.delay = delay
        self.port = 0
        self._to = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.carried = 0
        """Bytes, both ways."""

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self.delay)  # the handshake of TCP itself
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        pumps = [self._pump(reader, back), self._pump(there, writer)]
        for pump in pumps:
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(4096)

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self._flows.wait()
                if not data:
                    return
                sink.write(data)
                await sink.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                data = await source.read(65536)
                self.carried += len(data)
                await late.put((loop.time() + self.delay, data))
                if not data:
                    break
            await delivering
        except ConnectionError:
            pass
        finally:
            delivering.cancel()
            sink.close()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def relayed(port: int, delay: float = 0.1) -> AsyncIterator[Relay]:
    """A relay before a port of this machine."""
    relay = Relay(port, delay)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.close()
