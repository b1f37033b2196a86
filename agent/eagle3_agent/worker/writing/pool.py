"""Writers of the process that captures, bounded by the bytes in their hands.

Each has a thread here, which waits for the states, names the file and tells of it; the work is
done by a process of its own (``process``), which finds the states in shared memory.  A thread
would take the interpreter's lock from the model's step a hundred times a file, and wait for it as
often: with one such writer a busy step ran 0.42 times as fast, on two cores.  States in memory of
this process alone, as engine ``transformers`` has them, are written by the thread.

A sample is written to a temporary name, synced and renamed; then it gets its
manifest line, then its ledger line.  The first error stops all of it: it is
told in the ledger, no temporary file is left, and every later call raises.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eagle3_agent import runs
from eagle3_agent.worker import manifest
from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.manifest import Entry

from . import files, formats, sample
from .formats import Layout, Misshapen, Unfit, layout
from .item import Item
from .ledger import Fault, Ledger, Measured, Rejected, Written
from .process import WriterBroken, WriterLost, WriterProcess
from .sample import Names, Save, Whole
from .shared import Shared

__all__ = ["Layout", "Pool", "PoolFailed", "layout"]

_SYNC_EVERY = 2.0
"""Seconds between syncs of folder and manifest: how much of a run a power cut can cost.  A resume
checks every file anyway."""

_ABORT = 8.0
"""Seconds that ``abort`` waits for threads that are inside of a write or a copy."""

_WATCH = 0.2

_LOOK_EVERY = 1.0
"""Seconds between two questions for the room left on the disk."""

_LOST = (
    "resume the run; if the kernel killed it for want of memory, with a smaller output.buffer or "
    "fewer output.writer_threads; its own last words are in the run's output"
)


class PoolFailed(Exception):
    """The pool has stopped; its cause is in the ledger already, if that could be written."""


class Pool:
    """Takes items from one thread; writes them with ``output.threads`` writers of its own."""

    def __init__(
        self, output: Output, save: Save = formats.save, memory: Shared | None = None
    ) -> None:
        """Starts the writers: processes over ``memory``, or threads where there is none.

        ``save`` writes an item's bytes in a thread; raises Unfit, Misshapen.  That a process
        cannot be started is told as its loss is.
        """
        self._output, self._save = output, save
        self._folder = Path(output.folder)
        self._ledger = Ledger(Path(output.ledger))
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._open: set[int] = set()
        self._bytes = 0
        self._stop = self._ended = False
        self._cause = ""
        self._synced = time.monotonic()
        self._looked = float("-inf")
        self._room: tuple[int, int] | None = None
        self.peak = 0
        """The most bytes of states that were in the pool's hands at once."""
        self.seconds = 0.0
        """Checking, serialising, hashing, writing and syncing, summed over the writers."""
        self._processes: list[WriterProcess] = []
        if memory is not None:
            self._start(memory)
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"writer-{i}", daemon=True)
            for i in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def _count(self) -> int:
        return max(1, self._output.threads)

    def _start(self, memory: Shared) -> None:
        try:
            for _ in range(self._count):
                self._processes.append(WriterProcess(self._output, memory))
        except WriterLost as error:
            self._fail(error)

    def submit(self, item: Item) -> None:
        """Hand a sample over; waits while ``output.buffer_bytes`` are exceeded.

        One item always passes, however large.  Raises PoolFailed, with the item released.
        """
        size = int(item.states.nbytes)
        try:
            with self._changed:
                while not self._stop and self._bytes and not self._fits(size):
                    self._changed.wait()
                self._check()
                if item.index in self._open:
                    raise Misshapen(f"sample {item.index} was captured twice")
                self._open.add(item.index)
                self._bytes += size
                self.peak = max(self.peak, self._bytes)
                self._waiting.append(item)
                self._changed.notify_all()
        except Misshapen as error:
            item.release()
            self._fail(error)
            self._check()
        except BaseException:
            item.release()
            raise

    def _fits(self, size: int) -> bool:
        return self._bytes + size <= self._output.buffer_bytes

    def tell(self, measured: Measured) -> None:
        """A line of figures for the run, at most one a second; raises PoolFailed."""
        self._check()
        if self._room is not None:
            free, total = self._room
            measured = replace(measured, disk_free=free, disk_total=total)
        try:
            self._ledger.append(measured)
        except OSError as error:
            self._fail(error)
            self._check()

    def finish(self, watch: Callable[[], None] | None = None) -> None:
        """Wait until every sample is on the disk, its name and its line too.

        ``watch`` is called a few times a second meanwhile.  Raises PoolFailed.
        """
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_WATCH)
                if watch is not None:
                    watch()
        self._check()
        try:
            self._sync()
        except OSError as error:
            self._fail(error)
            self._check()

    def abort(self) -> None:
        """Stop soon and remove what is half-written; callable twice, and after ``finish``."""
        with self._changed:
            self._cause = self._cause or "the run was stopped"
            self._stop = True
            self._changed.notify_all()
        self._stop_processes()
        deadline = time.monotonic() + _ABORT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()
        self._drop_waiting()

    def _stop_processes(self) -> None:
        for process in self._processes:
            process.stop()

    def _check(self) -> None:
        if self._stop:
            raise PoolFailed(self._cause)

    # ---------------------------------------------------------------- the threads

    def _work(self, number: int) -> None:
        process = self._processes[number] if number < len(self._processes) else None
        try:
            self._work_with(process)
        finally:
            if process is not None:
                process.close()

    def _work_with(self, process: WriterProcess | None) -> None:
        while (item := self._next()) is not None:
            began = None
            try:
                item.ready()
                began = time.perf_counter()
                self._write(item, process)
            except files.Stopped:
                pass
            except BaseException as error:  # told to the run, which ends
                self._fail(error)
            finally:
                self._done(item, 0.0 if began is None else time.perf_counter() - began)
        self._drop_waiting()

    def _next(self) -> Item | None:
        with self._changed:
            while not (self._stop or self._waiting or self._ended):
                self._changed.wait()
            return self._waiting.popleft() if self._waiting and not self._stop else None

    def _done(self, item: Item, seconds: float) -> None:
        size = int(item.states.nbytes)
        try:
            item.release()
        except BaseException as error:
            self._fail(error)
        with self._changed:
            self._open.discard(item.index)
            self._bytes -= size
            self.seconds += seconds
            self._changed.notify_all()

    def _drop_waiting(self) -> None:
        """Release what nobody will write any more; nothing does after a good end."""
        while True:
            with self._changed:
                if not (self._stop and self._waiting):
                    return
                item = self._waiting.popleft()
            self._done(item, 0.0)

    def _write(self, item: Item, process: WriterProcess | None) -> None:
        name = manifest.file_name(item.index, self._output.kind)
        names = Names(self._folder / manifest.partial_name(name, os.getpid()), self._folder / name)
        try:
            whole = self._whole(item, names, process)
        except Unfit as why:
            return self._ledger.append(Rejected(item.index, str(why)))
        entry = Entry(
            index=item.index,
            file=name,
            tokens=len(item.input_ids),
            bytes=whole.bytes,
            sha256=whole.sha256,
            dtype=self._output.dtype,
            layers=len(self._output.layers),
            hidden=self._output.hidden,
            row=whole.row,
            mask=whole.mask,
        )
        manifest.append(self._folder, entry)
        with self._changed:
            due = time.monotonic() - self._synced >= _SYNC_EVERY
            if due:
                self._synced = time.monotonic()
        if due:
            self._sync()
        self._look()
        self._ledger.append(Written(entry))

    def _whole(self, item: Item, names: Names, process: WriterProcess | None) -> Whole:
        if process is not None and item.states.offset is not None:
            return process.write(item, names)
        return sample.write(item, self._output, names, lambda: self._stop, self._save)

    def _look(self) -> None:
        """Ask for the room left: here, where a mount that hangs holds up nobody but a writer."""
        with self._changed:
            if time.monotonic() - self._looked < _LOOK_EVERY:
                return
            self._looked = time.monotonic()
        try:
            told = os.statvfs(self._folder)
        except OSError:
            return  # the figure before stays; what ails the folder ends the next write
        if told.f_blocks:  # some network filesystems say nothing, as zeros
            self._room = (told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize)

    def _sync(self) -> None:
        """First the names, then the lines that speak of them."""
        runs.sync_folder(self._folder)
        if (self._folder / manifest.MANIFEST).exists():
            files.sync_file(self._folder / manifest.MANIFEST)

    # ---------------------------------------------------------------- the first error

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            first, self._stop = not self._stop, True
            made = _explained(error, self._folder)
            if first:
                self._cause = f"{made.title}: {made.text}" if made.kind != "capture" else made.title
            self._changed.notify_all()
        self._stop_processes()
        if first:
            try:
                self._ledger.append(made)
            except OSError as unwritten:
                self._cause += f" (and {self._output.ledger}: {unwritten})"


def _explained(error: BaseException, folder: Path) -> Fault:
    if isinstance(error, Misshapen):
        return Fault(str(error), "a fault of the engine", "capture")
    if isinstance(error, WriterLost):
        return Fault(str(error), _LOST, "output")
    if isinstance(error, WriterBroken):
        return Fault(str(error), error.trace[-16_000:], "capture")
    if not isinstance(error, OSError):
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return Fault(f"{type(error).__name__}: {error}".rstrip(": "), trace[-16_000:], "capture")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        path = Path(str(error.filename or folder))  # the ledger lies on another disk, perhaps
        place = folder if path.parent == folder else path
        return Fault(f"no space left on {place}", "free some, then resume the run", "full")
    reason = error.strerror or error
    return Fault(f"{folder} cannot be written ({reason})", "resume the run once it can")
