"""The file format of ``torch.save``, without its copies: for ``torch.load``, mmap included.

A ZIP archive of stored entries below one folder name: ``data.pkl`` (the pickled value, whose
tensors point at storages by key), ``byteorder``, ``data/KEY`` (a storage's bytes, aligned to 64
so that it can be mapped) and ``version``.  The pickle names torch's classes without importing
them.
Format: torch/serialization.py (``_save``, ``_load``), caffe2/serialize/inline_container.cc, and
PKWARE's APPNOTE.TXT 4.3 to 4.5.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

_ALIGN = 64
_ROOT = "archive"
_U32 = 0xFFFFFFFF

#: dtype -> (the storage class that the pickle names, bytes an element)
_STORAGES = {
    "float32": ("FloatStorage", 4),
    "bfloat16": ("BFloat16Storage", 2),
    "float16": ("HalfStorage", 2),
    "int64": ("LongStorage", 8),
}


@dataclass(frozen=True)
class Tensor:
    """A contiguous tensor to be written; becomes a ``torch.Tensor`` with a storage of its own."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class Sink(Protocol):
    def write(self, data: Any) -> None: ...


def save(value: Any, file: Sink) -> None:
    """Write ``value`` (plain containers of ``Tensor``); raises what ``file`` raises."""
    pickled, storages = _pickle(value)
    archive = _Archive(file)
    archive.add("data.pkl", pickled)
    archive.add("byteorder", b"little")
    for key, data in enumerate(storages):
        archive.add(f"data/{key}", data)
    archive.add("version", b"3\n")
    archive.end()


@dataclass(frozen=True)
class _Global:
    """A name that the pickle imports when it is read."""

    module: str
    name: str

    def __call__(self) -> None:
        """A pickler refuses to have called what cannot be."""
        raise TypeError(f"{self.module}.{self.name} is only named here")


_REBUILD = _Global("torch._utils", "_rebuild_tensor_v2")
_CLASSES = {kind: _Global("torch", kind) for kind, _ in _STORAGES.values()}


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    count: int


def _pickle(value: Any) -> tuple[bytes, list[bytes | memoryview]]:
    """The pickle and the storages it points at, in the order of their keys."""
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(value)
    return out.getvalue(), pickler.storages


class _Pickler(pickle._Pickler):
    """Protocol 2, as torch's own; the one in Python, since C's looks up every name it writes."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, protocol=2)
        self.storages: list[bytes | memoryview] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Storage):
            return None
        return ("storage", _CLASSES[obj.kind], obj.key, "cpu", obj.count)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        kind, width = _STORAGES[obj.dtype]
        storage = _Storage(kind, str(len(self.storages)), len(obj.data) // width)
        self.storages.append(obj.data)
        hooks: OrderedDict[Any, Any] = OrderedDict()
        return _REBUILD, (storage, 0, obj.shape, _strides(obj.shape), False, hooks)

    def _save_global(self: Any, obj: _Global) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode("ascii"))
        self.memoize(obj)

    dispatch[_Global] = _save_global


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    made: list[int] = []
    step = 1
    for side in reversed(shape):
        made.append(step)
        step *= side
    return tuple(reversed(made))


class _Archive:
    """Stored entries one after the other, each with its CRC-32 in front; sizes past 4 GiB too."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._at = 0
        self._central: list[bytes] = []

    def add(self, name: str, data: bytes | memoryview) -> None:
        path = f"{_ROOT}/{name}".encode("ascii")
        crc, size, start = zlib.crc32(data), len(data), self._at
        large = size >= _U32
        extra = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        extra += _padding(start + 30 + len(path) + len(extra))
        shown = _U32 if large else size
        fields = struct.pack("<HHHHHIII", 45 if large else 20, 0, 0, 0, 0x21, crc, shown, shown)
        self._write(b"PK\x03\x04" + fields + struct.pack("<HH", len(path), len(extra)))
        self._write(path + extra)
        self._write(data)
        self._central.append(_central(fields, path, size, start))

    def end(self) -> None:
        start, count = self._at, len(self._central)
        listing = b"".join(self._central)
        self._write(listing)
        if start >= _U32:
            after = self._at
            fields = (44, 45, 45, 0, 0, count, count, len(listing), start)
            self._write(b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", *fields))
            self._write(b"PK\x06\x07" + struct.pack("<IQI", 0, after, 1))
        shown = min(start, _U32)
        self._write(b"PK\x05\x06")
        self._write(struct.pack("<HHHHIIH", 0, 0, count, count, len(listing), shown, 0))

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._at += len(data)


def _padding(at: int) -> bytes:
    """An extra field that moves what follows it from ``at`` to the next multiple of 64."""
    fill = -(at + 4) % _ALIGN
    return struct.pack("<2sH", b"FB", fill) + b"Z" * fill


def _central(fields: bytes, path: bytes, size: int, start: int) -> bytes:
    """The entry of the listing at the end; what passes 32 bits is said in an extra field."""
    wide = ([size, size] if size >= _U32 else []) + ([start] if start >= _U32 else [])
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    return (
        b"PK\x01\x02"
        + struct.pack("<H", 45 if wide else 20)
        + fields
        + struct.pack("<HHHHHII", len(path), len(extra), 0, 0, 0, 0, min(start, _U32))
        + path
        + extra
    )
