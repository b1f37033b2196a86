"""Sample files: a few threads that serialise, hash, sync and rename.

A file is complete or absent: it grows under a temporary name and is renamed
once it is on the disk; its manifest line comes after that.  The first error
stops all of it, and no temporary file is left.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import queue
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3_agent import runs
from eagle3_agent.protocol.values import OutputFormat

from . import manifest
from .dataset import digest
from .engines.base import Captured
from .errors import OutputError
from .manifest import Entry

_SYNC_EVERY = 2.0
"""Seconds between syncs of the folder; a resume checks every file anyway."""

_TAGS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


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
        written: Callable[[Entry], None],
        rejected: Callable[[int, str], None],
        threads: int | None = None,
    ) -> None:
        """``dtype`` is the states' own, and is kept.

        ``rejected`` gets samples whose states are not finite: they are not written.
        """
        self._folder, self._kind, self._dtype = folder, kind, dtype
        self._written, self._rejected = written, rejected
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
        broken = _not_finite(captured.states)
        if broken is not None:
            return self._rejected(sample.index, f"state {broken} holds NaN or infinity")
        name = manifest.file_name(sample.index, self._kind)
        temporary = self._folder / manifest.partial_name(name, os.getpid())
        file = _HashingFile(temporary, self._stop)
        try:
            with file:
                if self._kind == "speculators-pt":
                    _save_pt(captured, file)
                else:
                    _save_safetensors(captured, self._dtype, file)
                file.settle()
            os.rename(temporary, self._folder / name)
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


def _not_finite(states: tuple[Any, ...]) -> int | None:
    """Which state (by its place in the layer list) holds NaN or infinity; None for none."""
    import torch

    return next((i for i, s in enumerate(states) if not bool(torch.isfinite(s).all())), None)


def _own(states: tuple[Any, ...]) -> list[Any]:
    """Tensors with a storage of exactly their own: ``torch.save`` writes whole storages."""
    seen: set[int] = set()
    made = []
    for state in states:
        state = state.contiguous()
        shared = state.untyped_storage().data_ptr() in seen
        if shared or state.untyped_storage().nbytes() != state.numel() * state.element_size():
            state = state.clone()
        seen.add(state.untyped_storage().data_ptr())
        made.append(state)
    return made


def _save_pt(captured: Captured, file: _HashingFile) -> None:
    """``data_{i}.pt`` as speculators 0.3 and 0.4 train from it."""
    import torch

    sample = captured.sample
    body = {
        "input_ids": torch.tensor(list(sample.input_ids), dtype=torch.long),
        "hidden_states": _own(captured.states),
        "loss_mask": torch.tensor(list(sample.loss_mask), dtype=torch.long),
    }
    torch.save(body, file)


def _save_safetensors(captured: Captured, dtype: str, file: _HashingFile) -> None:
    """``hs_{i}.safetensors`` as speculators 0.5 and later read it: states ``[S, L, H]``, ids.

    The format is a length, a JSON header and the tensors' bytes; written here, so that it is
    hashed on the way and never held twice.
    """
    import torch

    states = torch.stack(list(captured.states), dim=1)
    ids = torch.tensor(list(captured.sample.input_ids), dtype=torch.long)
    size, end = ids.numel() * 8, ids.numel() * 8 + states.numel() * states.element_size()
    header = json.dumps(
        {
            "token_ids": {"dtype": "I64", "shape": list(ids.shape), "data_offsets": [0, size]},
            "hidden_states": {
                "dtype": _TAGS[dtype],
                "shape": list(states.shape),
                "data_offsets": [size, end],
            },
        }
    ).encode("ascii")
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header)
    file.write(ids.numpy())
    file.write(states.view(torch.uint8).numpy())


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
