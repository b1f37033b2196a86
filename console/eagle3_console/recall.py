"""Reads the end of a run's telemetry: what the GPUs did before this console looked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from eagle3_agent.protocol import ProtocolError, from_json
from eagle3_agent.protocol.values import HostSample

from .linkstate import LinkPort

#: Bytes read at most, whatever a host sends.
_MOST = 16 * 1024 * 1024
#: Seconds read before the wanted ones, in case that the guess of where they begin is late.
_SPARE = 300.0


async def recall(link: LinkPort, run: str, since: float) -> tuple[HostSample, ...]:
    """Samples of ``gpu.jsonl`` from about ``since`` (epoch seconds, the host's clock) until now.

    A file of hours is not read whole: its first piece tells how many bytes a second makes, and
    from where to go on.  Raises ConsoleError.
    """
    first, whole, end = await _read(link, run, 0, one=True)
    if whole or not first:
        return tuple(first)
    span = first[-1].t - first[0].t
    wanted = since - first[0].t
    wanted -= max(_SPARE, wanted / 20)  # lines are not all of one length
    skip = int(end * wanted / span) if span > 0 else 0
    if skip <= end:
        rest, _, _ = await _read(link, run, end)
        return (*first, *rest)
    found: list[HostSample] = []
    while not found and skip > end:  # past the file's end when lines have become shorter
        found, _, _ = await _read(link, run, skip)
        skip //= 2
    return tuple(found)


async def _read(
    link: LinkPort, run: str, offset: int, *, one: bool = False
) -> tuple[list[HostSample], bool, int]:
    """(samples, whether the file ended there, the offset after them) from ``offset``."""
    data = b""
    at = offset
    whole = False
    pieces = link.stream(run, "gpu", offset)
    try:
        async for piece in pieces:
            data += piece.data
            at = piece.offset + len(piece.data)
            whole = piece.caught_up
            if whole or one or len(data) >= _MOST:
                break
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()  # now, so that the host sends no more of it
    lines = data.split(b"\n")
    return [s for s in map(_sample, lines) if s is not None], whole, at


def _sample(line: bytes) -> HostSample | None:
    try:
        return from_json(HostSample, json.loads(line))
    except (ValueError, RecursionError, ProtocolError):
        return None  # a torn line, or one of a version that this console does not know
