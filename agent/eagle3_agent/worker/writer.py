"""Sample files: a few threads that serialise, hash, sync and rename.

A file is complete or absent: it grows under a temporary name and is renamed
once it is on the disk; its manifest line comes after that.  The first error
stops all of it, and no temporary file is left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from eagle3_agent import runs
from eagle3_agent.protocol.values import OutputFormat

from . import manifest
from .dataset import digest
from .engines.base import Captured
from .errors import OutputError
from .manifest import Entry

_SYNC_EVERY = 2.0
"""Seconds between syncs of the folder; a resume checks every file anyway."""


class Sink(Protocol):
    """Where a sample's bytes go."""

    def write(self, data: Any) -> int: ...


Save = Callable[[Captured, Sink], None]


class Rejected(Exception):
    """Why a sample must not be written; the run goes on without it."""


def default_threads() -> int:
    return min(8, max(2, (os.cpu_count() or 2) // 2))


class Writer:
    """Takes captured samples from one thread; calls back from its own threads."""

    def __init__(
        self,
        folder: Path,
        kind: OutputFormat,
        dtype: str,
        *,
        save: Save,
        written: Callable[[Entry], None],
        rejected: Callable[[int, str], None],
        threads: int | None = None,
    ) -> None:
        """``dtype`` is the states' own, for the manifest; ``save`` writes a sample's bytes.

        ``rejected`` gets the samples that ``save`` refuses, with the reason.
        """
        self._folder, self._kind, self._dtype = folder, kind, dtype
        self._save, self._written, self._rejected = save, written, rejected
        count = threads or default_threads()
        # as many waiting as being written: memory holds 2 x threads samples at most
        self._queue: queue.Queue[Captured | None] = queue.Queue(maxsize=count)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()
        self._threads = [
            threading.Thread(target=self._work, name=f"writer-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, captured: Captured) -> None:
        """Hand a sample over; waits while the disk is behind.

        Raises the first error of a writer: OutputError for a full disk and the like.
        """
        while True:
            self._raise()
            try:
                return self._queue.put(captured, timeout=0.1)
            except queue.Full:
                continue

    def finish(self) -> None:
        """Wait until every sample is on the disk; raises like ``submit``."""
        for _ in self._threads:
            self._put_end()
        for thread in self._threads:
            thread.join()
        self._raise()
        try:
            if (self._folder / manifest.MANIFEST).exists():
                _sync_file(self._folder / manifest.MANIFEST)
            runs.sync_folder(self._folder)
        except OSError as error:
            raise self._explained(error) from error

    def abort(self) -> None:
        """Stop as soon as possible and remove what is half-written; callable twice."""
        self._stop.set()
        deadline = time.monotonic() + 8.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _put_end(self) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(None, timeout=0.1)
            except queue.Full:
                continue

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                captured = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            if captured is None:
                return
            try:
                self._write(captured)
            except BaseException as error:  # told to the run's thread, which ends the run
                with self._lock:
                    if self._error is None:
                        self._error = self._explained(error)
                self._stop.set()

    def _explained(self, error: BaseException) -> BaseException:
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            made = OutputError(f"no space left on {self._folder}: free some, then resume the run")
        else:
            reason = error.strerror or error
            made = OutputError(f"{self._folder} cannot be written ({reason}): resume once it can")
        made.__cause__ = error
        return made

    def _write(self, captured: Captured) -> None:
        sample = captured.sample
        name = manifest.file_name(sample.index, self._kind)
        temporary = self._folder / manifest.partial_name(name, os.getpid())
        file = _HashingFile(temporary, self._stop)
        try:
            with file:
                self._save(captured, file)
                file.settle()
            os.rename(temporary, self._folder / name)
        except Rejected as why:
            temporary.unlink(missing_ok=True)
            return self._rejected(sample.index, str(why))
        except BaseException:
            temporary.unlink(missing_ok=True)
            if self._stop.is_set() and isinstance(file.error, _StoppedError):
                return
            raise
        entry = Entry(
            index=sample.index,
            file=name,
            tokens=len(sample.input_ids),
            bytes=file.size,
            sha256=file.sha256(),
            dtype=self._dtype,
            layers=len(captured.states),
            hidden=int(captured.states[0].shape[1]),
            row=digest(sample.input_ids),
            mask=digest(sample.loss_mask),
        )
        self._record(entry)

    def _record(self, entry: Entry) -> None:
        manifest.append(self._folder, entry)
        with self._lock:
            due = time.monotonic() - self._synced >= _SYNC_EVERY
            if due:
                self._synced = time.monotonic()
        if due:
            runs.sync_folder(self._folder)
        self._written(entry)


class _StoppedError(Exception):
    """The run stops; not an error of the file."""


class _HashingFile:
    """A new file that is hashed as it grows.

    torch's zip writer aborts the process or reports an unrelated position when ``write`` raises,
    so an error is kept, the rest is swallowed, and ``settle`` raises it.
    """

    def __init__(self, path: Path, stop: threading.Event) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._stop = stop
        self.size = 0
        self.error: BaseException | None = None

    def __enter__(self) -> _HashingFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                self._write(view)
            except (OSError, _StoppedError) as error:
                self.error = error
        return len(view)

    def _write(self, view: memoryview) -> None:
        for start in range(0, len(view), 1 << 24):
            if self._stop.is_set():
                raise _StoppedError
            part = view[start : start + (1 << 24)]
            self._hash.update(part)
            self.size += len(part)
            while part:
                part = part[os.write(self._fd, part) :]

    def flush(self) -> None:
        """Nothing is buffered here."""

    def settle(self) -> None:
        """The content is on the disk; raises what ``write`` met."""
        if self.error is None:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self.error = error
        if self.error is not None:
            raise self.error

    def sha256(self) -> str:
        return self._hash.hexdigest()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
