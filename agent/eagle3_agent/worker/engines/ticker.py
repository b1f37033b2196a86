"""Keep a run's ``watch`` going while a library's call takes its time.

A long step would leave the run without a sign of life.  The watch runs in a thread of
its own, but only within ``during``: never beside the run's other code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .base import Watch

T = TypeVar("T")

#: Seconds between two calls of the watch.
PERIOD = 0.2


class Ticker:
    """A context manager; what the watch raises is raised once the call has returned."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._changed = threading.Condition()
        self._inside = False
        self._ended = False
        self._next = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._tick, name="watch", daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def during(self, call: Callable[[], T]) -> T:
        """What ``call`` returns; the watch is called meanwhile, and at most then."""
        self._enter(True)
        try:
            return call()
        finally:
            self._enter(False)
            if self._error is not None:
                raise self._error

    def _enter(self, inside: bool) -> None:
        # the thread holds the lock while it watches: this waits for it to end
        with self._changed:
            self._inside = inside
            if inside and time.monotonic() >= self._next:
                self._changed.notify_all()

    def _tick(self) -> None:
        with self._changed:
            while not self._ended:
                left = self._next - time.monotonic()
                if not self._inside or left > 0:
                    # short steps wake nobody: a step that is due does, and a long one's clock
                    self._changed.wait(left if self._inside else None)
                    continue
                self._next = time.monotonic() + PERIOD
                try:
                    self._watch()
                except BaseException as error:  # raised in the run's own thread
                    self._error = error
                    return
