"""One file of the script's: a sample of the profile's data, or the reason why not.

Read into memory and not mapped: a script may write over a file while it is read here, and a
mapping of a file that shrinks ends the process.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import OutputFormat
from eagle3_agent.worker.manifest import Entry, digest
from eagle3_agent.worker.writing import checks
from eagle3_agent.worker.writing.item import States


@dataclass(frozen=True)
class Row:
    """What a file must hold, from the profile's data; 64 bytes and a number a row."""

    row: bytes
    """sha256 of the token ids, as in a manifest line."""
    mask: bytes
    tokens: int


@dataclass(frozen=True)
class Wanted:
    """What every file must hold."""

    kind: OutputFormat
    dtype: str
    layers: tuple[int, ...]
    hidden: int


class Unfit(Exception):
    """Why a file is no sample of this run, in words.

    ``torn``: it cannot be read, and may be on its way still.
    """

    def __init__(self, reason: str, *, torn: bool = False) -> None:
        super().__init__(reason)
        self.torn = torn


@dataclass(frozen=True)
class Stamp:
    """Changes with a file's content."""

    size: int
    changed: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Raises OSError, and Unfit for what is no regular file."""
        found = path.lstat()
        if (found.st_mode & 0o170000) != 0o100000:
            raise Unfit("is no regular file")
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


def examine(path: Path, index: int, row: Row | None, wanted: Wanted) -> Entry:
    """The manifest line of a file that is whole and right; raises Unfit."""
    if row is None:
        raise Unfit(f"the profile's data has no usable row {index}")
    data = _read(path, _limit(row, wanted))
    body = _parse(data, wanted.kind)
    _check_row(body, row, wanted)
    states = _states(body, wanted)
    _check_states(states, row.tokens, wanted)
    return Entry(
        index=index,
        file=path.name,
        tokens=row.tokens,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        dtype=wanted.dtype,
        layers=len(wanted.layers),
        hidden=wanted.hidden,
        row=row.row.hex(),
        mask=row.mask.hex(),
    )


def _limit(row: Row, wanted: Wanted) -> int:
    """Bytes that a file of this row may have: twice the widest dtype's states, and some room."""
    return 8 * row.tokens * len(wanted.layers) * wanted.hidden + (16 << 20)


def _read(path: Path, limit: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if os.fstat(fd).st_size > limit:
                raise Unfit("is far larger than the states of its row of the data")
            return file.read(limit)
    except OSError as error:
        raise Unfit(f"cannot be read: {error.strerror or error}", torn=True) from None


def _parse(data: bytes, kind: OutputFormat) -> Any:
    if not data:
        raise Unfit("is empty", torn=True)
    try:
        if kind == "speculators-pt":
            return _parse_pt(data)
        from safetensors.torch import load

        return load(data)
    except Unfit:
        raise
    except Exception as error:  # torch and safetensors raise many types for broken bytes
        first = str(error).strip().split("\n")[0][:200]
        raise Unfit(f"cannot be loaded, is it cut off? {first}", torn=True) from None


def _parse_pt(data: bytes) -> Any:
    import torch

    if not data.startswith(b"PK\x03\x04"):
        raise Unfit("is not in torch.save's zip format, which a trainer maps", torn=True)
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _check_row(body: Any, row: Row, wanted: Wanted) -> None:
    if not isinstance(body, dict):
        raise Unfit(f"holds a {type(body).__name__}, not a dict with input_ids and hidden_states")
    pt = wanted.kind == "speculators-pt"
    tokens, found = _numbers(body, "input_ids" if pt else "token_ids")
    if found != row.row.hex():
        if tokens != row.tokens:
            raise Unfit(f"holds {tokens} tokens, its row of the data has {row.tokens}")
        raise Unfit("its token ids are not those of its row of the data")
    # the safetensors form has no mask
    if pt and _numbers(body, "loss_mask")[1] != row.mask.hex():
        raise Unfit("its loss_mask is not that of its row of the data")


def _numbers(body: Any, key: str) -> tuple[int, str]:
    """How many, and their digest."""
    value = body.get(key)
    if value is None:
        raise Unfit(f"has no {key}")
    values = value.tolist() if hasattr(value, "tolist") else value
    try:
        return len(values), digest(values)
    except (TypeError, struct.error):
        raise Unfit(f"its {key} is no list of whole numbers") from None


def _states(body: Any, wanted: Wanted) -> list[Any]:
    import torch

    found = body.get("hidden_states")
    if wanted.kind == "safetensors" and isinstance(found, torch.Tensor) and found.dim() == 3:
        found = list(found.unbind(dim=1))
    if isinstance(found, torch.Tensor):
        found = list(found) if found.dim() else []
    if not isinstance(found, (list, tuple)) or not all(isinstance(s, torch.Tensor) for s in found):
        raise Unfit("its hidden_states are no list of tensors")
    return list(found)


def _check_states(states: list[Any], tokens: int, wanted: Wanted) -> None:
    if len(states) != len(wanted.layers):
        raise Unfit(f"holds {len(states)} layers, capture.layers names {len(wanted.layers)}")
    shapes = {tuple(state.shape) for state in states}
    if shapes != {(tokens, wanted.hidden)}:
        raise Unfit(f"its states have the shapes {sorted(shapes)}, not {(tokens, wanted.hidden)}")
    dtypes = {str(state.dtype).removeprefix("torch.") for state in states}
    if dtypes != {wanted.dtype}:
        raise Unfit(f"its states are {', '.join(sorted(dtypes))}, the run's are {wanted.dtype}")
    for layer, state in zip(wanted.layers, states):
        whole = States.of(state.detach().contiguous().unsqueeze(0))
        wrong = checks.fault(whole, (layer,), "LSH")
        if wrong:
            raise Unfit(wrong)
