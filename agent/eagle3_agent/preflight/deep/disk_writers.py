"""Sample-sized files from several threads, as a run's writers make them: a process of its own.

Each file is written under a temporary name, synced, renamed and then removed, so that the folder
never holds more than a file a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.protocol import dumps, from_json

_PART = 8 << 20


@dataclass(frozen=True)
class Asked:
    folder: str
    """Exists and is this exercise's alone."""
    total: int
    """Bytes in all."""
    file: int
    """Bytes of a file."""
    threads: int
    seconds: float
    """No file is begun after this."""


@dataclass(frozen=True)
class Wrote:
    bytes: int = 0
    """Durable: the sync of their file and its rename had come back."""
    files: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    """Seconds of the slowest file."""
    problem: str = ""


class _Writers:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._left = max(1, asked.total // asked.file)
        self._lock = threading.Lock()
        self._until = time.monotonic() + asked.seconds
        # what no filesystem can compress; every file begins at another byte of it
        self._data = os.urandom(_PART + 4096)
        self.files, self.slowest, self.problem = 0, 0.0, ""

    def work(self, number: int) -> None:
        while (place := self._next()) is not None:
            began = time.monotonic()
            try:
                self._write(number, place)
            except OSError as error:
                self.problem = error.strerror or str(error)
                return
            with self._lock:
                self.files += 1
                self.slowest = max(self.slowest, time.monotonic() - began)

    def _next(self) -> int | None:
        with self._lock:
            if self._left <= 0 or self.problem or time.monotonic() > self._until:
                return None
            self._left -= 1
            return self._left

    def _write(self, number: int, place: int) -> None:
        path = Path(self._asked.folder) / f"{number}.part"
        done = path.with_suffix(".done")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._fill(fd, place % 4096)
            os.fsync(fd)
            os.rename(path, done)
        finally:
            os.close(fd)
            for name in (path, done):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    def _fill(self, fd: int, offset: int) -> None:
        left = self._asked.file
        while left:
            view = memoryview(self._data)[offset : offset + min(_PART, left)]
            left -= os.write(fd, view)


def measure(asked: Asked) -> Wrote:
    writers = _Writers(asked)
    threads = [threading.Thread(target=writers.work, args=(i,)) for i in range(asked.threads)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    count = writers.files
    return Wrote(count * asked.file, count, seconds, writers.slowest, writers.problem)


def main(report: str) -> None:
    """Asked as JSON on stdin, Wrote as JSON in ``report``."""
    asked = from_json(Asked, json.loads(sys.stdin.buffer.read()))
    Path(report).write_text(dumps(measure(asked)))
