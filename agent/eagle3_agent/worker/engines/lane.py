"""One helper thread that runs calls in order, beside the engine's own thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Lane:
    """Runs what is submitted, one call after the other.

    The thread is a daemon: a call into a library that hangs does not keep the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, lambda: call(*args, **kwargs)))
        return future

    def close(self) -> None:
        """Let the thread end once it is through; does not wait for it."""
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            entry = self._calls.get()
            if entry is None:
                return
            future, call = entry
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
