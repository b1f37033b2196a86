"""How many writer threads and how much memory a run takes where its profile does not say."""

from __future__ import annotations

import os

from eagle3_agent.worker import memory

_MAX_THREADS = 16
_MAX_BUFFER = 8 << 30


def threads(cores: int | None = None) -> int:
    """Half of the cores that this process may use, 2 to 16.

    A thread checks, hashes and writes about 0.4 GB/s into memory (sha256 alone runs at 1 to 2),
    and mostly sleeps when the disk is slower than that: 16 are 6 GB/s, more than most disks take.
    The other half of the cores is the model's, whose steps a late Python thread delays.
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
