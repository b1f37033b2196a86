"""Conversations that were tokenised, kept by content below the agent's cache folder.

A run passes over its data several times (plan, feed, verify, resume), and a
chat template is slow.  The first whole pass leaves an entry behind; every other
pass over the same content streams that instead.  An entry is never believed
without its checksum, and a run goes the same without any: an error of the cache
costs time and nothing else.

An entry is a magic, one record a row, and the sha256 of all that:

    u8 1, u64 index, u32 tokens, u32 dropped, u32 id * tokens, u8 mask * tokens
    u8 0, u64 index, u32 length, u32 0, the reason in UTF-8         (a row that cannot be used)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import sys
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from eagle3_agent import paths

from . import rows
from .errors import DataError
from .limits import Limits

#: Bytes that all entries take together; the ones unused for longest go first.
LIMIT = 4 * 2**30

#: Bytes that stay free on the disk: run folders may lie on the same one.
SPARE = 2**30

_FORMAT = 1
_MAGIC = b"EAGLE3T1"
_HEAD = struct.Struct("<BQII")
_DIGEST = 32
_CHUNK = 1 << 20

#: What an entry depends on besides data and model: they apply the template.
_LIBRARIES = ("transformers", "tokenizers", "jinja2")

#: Files of a model's folder that no tokenizer reads.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz")


@dataclass(frozen=True)
class Kept:
    """One row: a sample, or the reason why it is none."""

    index: int
    input_ids: Sequence[int] = ()
    loss_mask: Sequence[int] = ()
    dropped: int = 0
    reason: str = ""


def find(data: Path, model: Path, limits: Limits, *, trust_remote_code: bool) -> Cache | None:
    """Where this content's rows are kept, or will be; None where no folder can be had.

    Reads the data once.  Raises DataError when it cannot be read.
    """
    before = _marks(data)
    basis = {
        "format": _FORMAT,
        "data": rows.fingerprint(data),
        "tokenizer": tokenizer_fingerprint(model),
        "limits": asdict(limits),
        "trust_remote_code": trust_remote_code,
        "libraries": [_version(name) for name in _LIBRARIES],
        "byteorder": sys.byteorder,
    }
    key = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()
    folder = paths.cache_dir() / "tokens"
    try:
        paths.private_dir(folder)
    except OSError:
        return None
    return Cache(folder, key, lambda: _marks(data) == before)


def tokenizer_fingerprint(model: Path) -> str:
    """sha256 over all files of a model's folder but its weights: names and content."""
    digest = hashlib.sha256()
    try:
        inner = [path for path in model.iterdir() if path.suffix not in _WEIGHTS]
        extra = model / "additional_chat_templates"
        files = [*inner, *(extra.iterdir() if extra.is_dir() else ())]
        for file in sorted(path for path in files if path.is_file()):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(model)}\0{content}\0".encode(errors="replace"))
    except OSError as error:
        raise DataError(f"{model} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _marks(data: Path) -> list[tuple[str, int, int, int]]:
    """What changes about the files when somebody writes into them; raises DataError."""
    try:
        found = sorted(data.iterdir()) if data.is_dir() else [data]
        stats = [(path.name, path.stat()) for path in found]
    except OSError as error:
        raise DataError(f"{data} cannot be read: {error.strerror or error}") from error
    return [(name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in stats]


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} none"


class Cache:
    """One entry, there or not yet."""

    def __init__(self, folder: Path, key: str, unchanged: Callable[[], bool]) -> None:
        """``unchanged`` says whether the data is still what ``key`` was made from."""
        self.path = folder / f"{key}.tokens"
        self._unchanged = unchanged

    def rows(self, source: Iterator[Kept]) -> Iterator[Kept]:
        """The entry's rows, or those of ``source``, which are kept when all of them were taken."""
        entry = self._open()
        if entry is not None:
            with entry:
                yield from _records(entry)
            return
        partial = _Partial(self.path)
        try:
            for row in source:
                partial.add(row)
                yield row
            if self._unchanged():
                partial.publish()
        finally:
            partial.discard()

    def _open(self) -> IO[bytes] | None:
        """The entry at its first record, locked against eviction; None for none that is whole."""
        try:
            file = self.path.open("rb")
        except OSError:
            return None
        try:
            _lock(file.fileno(), fcntl.LOCK_SH)
            if _is_whole(file):
                os.utime(self.path)
                return file
            file.close()
            self.path.unlink(missing_ok=True)
        except OSError:
            file.close()
        return None


def _is_whole(file: IO[bytes]) -> bool:
    """Compare the checksum; leaves the file behind its magic.  Raises OSError."""
    left = os.fstat(file.fileno()).st_size - _DIGEST
    digest = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(_CHUNK, left))
        if not chunk:
            return False
        digest.update(chunk)
        left -= len(chunk)
    good = left == 0 and file.read(_DIGEST) == digest.digest()
    file.seek(0)
    return good and file.read(len(_MAGIC)) == _MAGIC


def _records(file: IO[bytes]) -> Iterator[Kept]:
    """Rows of a file whose checksum was right."""
    end = os.fstat(file.fileno()).st_size - _DIGEST
    while file.tell() < end:
        usable, index, length, dropped = _HEAD.unpack(file.read(_HEAD.size))
        if not usable:
            yield Kept(index, reason=file.read(length).decode("utf-8"))
            continue
        ids, mask = array("I"), array("b")
        ids.frombytes(file.read(length * ids.itemsize))
        mask.frombytes(file.read(length))
        yield Kept(index, array("q", ids), mask, dropped)


class _Partial:
    """An entry that grows; after any error of the disk it takes rows and does nothing."""

    def __init__(self, path: Path) -> None:
        self._target = path
        self._path = path.parent / f".{path.stem}.{uuid.uuid4().hex}.partial"
        self._digest = hashlib.sha256()
        self._size = 0
        self._checked = -_CHUNK
        self._file: IO[bytes] | None = None
        try:
            self._file = self._path.open("xb")
            _lock(self._file.fileno(), fcntl.LOCK_EX)
        except OSError:
            self.discard()
        self._write(_MAGIC)

    def add(self, row: Kept) -> None:
        if row.reason:
            text = row.reason.encode("utf-8", "replace")
            self._write(_HEAD.pack(0, row.index, len(text), 0) + text)
            return
        head = _HEAD.pack(1, row.index, len(row.input_ids), row.dropped)
        self._write(
            head + array("I", row.input_ids).tobytes() + array("b", row.loss_mask).tobytes()
        )

    def publish(self) -> None:
        """Put it in place, and older entries away where there are too many."""
        if self._file is None:
            return
        try:
            self._file.write(self._digest.digest())
            self._file.flush()
            _make_room(self._target.parent, self._size + _DIGEST)
            os.replace(self._path, self._target)
        except OSError:
            return
        self._close()

    def discard(self) -> None:
        """Remove what is not published; callable twice."""
        if self._file is not None:
            self._close()
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                pass  # the next entry's publishing clears it away

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
            self._digest.update(data)
            self._size += len(data)
            if self._size - self._checked >= _CHUNK:
                self._checked = self._size
                disk = os.fstatvfs(self._file.fileno())
                if self._size > LIMIT or disk.f_bavail * disk.f_frsize < SPARE:
                    self.discard()
        except OSError:
            self.discard()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # a full disk: the buffered rest is not needed


def _make_room(folder: Path, need: int) -> None:
    """Remove what was unused for longest until ``need`` bytes more fit, and orphans; OSError."""
    for orphan in folder.glob(".*.partial"):
        _remove_unused(orphan)
    found = []
    for path in folder.glob("*.tokens"):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append((stat.st_mtime_ns, stat.st_size, path))
    total = need + sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= LIMIT:
            return
        if _remove_unused(path):
            total -= size


def _remove_unused(path: Path) -> bool:
    """Unlink a file that nobody holds a lock on."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            return True
    except OSError:
        return False


def _lock(descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: an entry that is removed stays readable while open
