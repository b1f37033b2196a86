"""How many writer threads and how much memory a run takes where its profile does not say."""

from __future__ import annotations

import os

from eagle3_agent.worker import memory

_MAX_THREADS = 16
_MAX_BUFFER = 8 << 30


def threads(cores: int | None = None) -> int:
    """Half of the cores that this process may use, 2 to 16.

    On a host of 16 cores with an H200, 8 threads kept 1.09 GB/s on a disk that takes 2.1 from 8
    that do nothing else, 16 kept 1.04 and 32 kept 1.19, while the model beside them ran 0.85 and
    0.7 times as fast as with 8: more threads of one interpreter are in each other's way.
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
