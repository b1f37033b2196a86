"""A worker process whose parent is gone ends itself, whatever it is waiting for.

vLLM's own watch asks its main loop to end, which a step that waits for a dead rank never
does; until then the process would keep its GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing import connection

#: Seconds in which vLLM's own way out may do it.
_GRACE = 2.0

_started = threading.Lock()


def end_with_parent() -> None:
    """Start the watch in a process that multiprocessing started; once in a process."""
    parent = multiprocessing.parent_process()
    if parent is None or not _started.acquire(blocking=False):
        return
    threading.Thread(target=_watch, args=(parent.sentinel,), name="orphan", daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    time.sleep(_GRACE)
    os._exit(1)
