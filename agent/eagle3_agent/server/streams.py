"""A run's file on its way to one client, by byte offset: no gap, no repeat, no unbounded buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from eagle3_agent.journal import CHUNK, read_from
from eagle3_agent.protocol.messages import Chunk

#: Seconds between two looks at a file that has no new bytes.
POLL = 0.1


async def pump(
    sub: int,
    path: Path,
    offset: int,
    ended: Callable[[], bool],
    send: Callable[[Chunk], Awaitable[None]],
) -> None:
    """Send ``path`` from ``offset`` until the run has ended and every byte is sent.

    ``send`` waits while the client is slow: one chunk is held, whatever the file does meanwhile.
    ``ended`` must be true only when nobody will append to the file any more.
    """
    told = False  # whether the client knows that it has caught up
    while True:
        over = ended()  # asked before the read: what came before the end is then in it
        data = await asyncio.to_thread(read_from, path, offset)
        if data or over or not told:
            told = len(data) < CHUNK
            await send(Chunk.of(sub, offset, data, caught_up=told, ended=over and told))
            offset += len(data)
            if over and told:
                return
        if told:
            await asyncio.sleep(POLL)
