"""How many writers and how much memory a run takes where its profile does not say."""

from __future__ import annotations

import os

from eagle3_agent.worker import memory

_MAX_THREADS = 16
_MAX_BUFFER = 8 << 30


def threads(cores: int | None = None) -> int:
    """Writers (``Output.threads``): half of the cores that this process may use, 2 to 16.

    A writer takes some 2.5 seconds of a core for a GB (sha256 1.1, CRC-32 0.65, checks 0.3, the
    rest writing), so that half of 16 cores are good for 3 GB/s where the disk is.  As threads of
    the model's process, 8 of them kept 1.09 GB/s on a host of 16 cores with an H200, whose disk
    takes 2.1 from 8 that do nothing else, and 16 or 32 slowed the model to 0.85 or 0.7 of that;
    as processes they were not measured there.
    """
    cores = cores or len(os.sched_getaffinity(0))
    return min(_MAX_THREADS, max(2, cores // 2))


def buffer_bytes(longest: int, available: int | None = None) -> int:
    """An eighth of the host memory that is free, at most 8 GiB, at least two longest samples.

    ``longest`` is the bytes of the longest sample's states.  Two, since with less the model stands
    while a file is written.  8 GiB, since a buffer evens out seconds in which the disk is behind,
    and a disk that is slower for longer than that is the limit whatever lies in memory.
    """
    available = memory.available() if available is None else available
    share = _MAX_BUFFER if available is None else min(_MAX_BUFFER, available // 8)
    return max(share, 2 * longest)
