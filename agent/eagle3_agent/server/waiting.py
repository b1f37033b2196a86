"""Wait for what other processes do: they have no event to wait on, so it is looked at again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(true: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Whether ``true`` became true within ``seconds``."""
    end = time.monotonic() + seconds
    while not (now := true()) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(pause)
    return now
