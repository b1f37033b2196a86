"""What the model's tensors and config say about memory: names, shapes and dtypes, no data.

Tensors of one name but for its numbers, of one dtype and one shape, are one group: a
checkpoint of 200,000 tensors has some forty.  Broken files are the check ``model``'s matter;
here they only make the sum unknown.

``model_facts`` reads the same headers in a process of its own, side by side with this one: 0.75 s
of CPU time each for 192,000 tensors in 64 shards, and nothing to be seen for a few hundred.  One
pass would take longer than either, and a shard that it stumbles over would cost both checks.
"""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import open_regular
from eagle3_agent.preflight.model.safetensors import HEADER_LIMIT
from eagle3_agent.preflight.model.weights import INDEX, SINGLE

from .dimensions import Decoder, read_decoder

_FILE_LIMIT = 256 * 1024 * 1024
#: More kinds of tensors than any model has: names without numbers in them, or nonsense.
_GROUPS_MOST = 5000
_NAME_LIMIT = 200

_DIGITS = re.compile(r"\d+")
_SHARD = re.compile(rb':\s*"([^"\\]+\.safetensors)"')
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
#: Parts of a multimodal model that are no decoder: their layers are counted by themselves.
TOWER = re.compile(r"vision|visual|image|audio|speech|mm_projector|multi_modal", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Tensors that differ only in the numbers of their names."""

    name: str
    """With ``*`` for each number: ``model.layers.*.mlp.down_proj.weight``."""
    dtype: str
    """The format's: ``BF16``, ``F8_E4M3``, ``I32``."""
    shape: tuple[int, ...]
    count: int
    bytes: int
    """Of one of them."""
    beyond: bool = False
    """Of layers past the decoder's last (multi-token prediction), which vLLM does not load."""


@dataclass(frozen=True)
class CheckpointFacts:
    path: str
    problem: str = ""
    """Why nothing can be summed, in words; the rest may be empty then."""
    decoder: Decoder = field(default_factory=Decoder)
    groups: tuple[Group, ...] = ()
    files: int = 0
    unread: int = 0
    """Files whose header could not be read: the sum lacks them."""


def _collect(ask: Ask) -> CheckpointFacts:
    path = ask.profile.model.path
    try:
        config = _json(os.path.join(path, "config.json"))
        names = _files(path)
    except (OSError, ValueError, RecursionError) as error:
        words = getattr(error, "strerror", None) or "it is not JSON of an object"
        return CheckpointFacts(path, f"the model folder cannot be read: {words}")
    decoder = read_decoder(config)
    if not names:
        return CheckpointFacts(path, "the model folder has no safetensors", decoder)
    seen = _Groups(decoder.layers)
    unread = 0
    for name in names:
        try:
            seen.take(_header(os.path.join(path, name)))
        except (OSError, ValueError, RecursionError):
            unread += 1
    problem = f"more than {_GROUPS_MOST} kinds of tensors" if seen.overflow else ""
    return CheckpointFacts(path, problem, decoder, seen.groups(), len(names), unread)


class _Groups:
    """Counts tensors by name, dtype, shape and size; a header of thousands takes milliseconds."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._counts: dict[tuple[Any, ...], int] = {}
        self.overflow = False

    def take(self, header: dict[str, Any]) -> None:
        """Raises ValueError for a tensor that is not described soundly."""
        counts, plain = self._counts, _DIGITS.sub
        header.pop("__metadata__", None)
        try:
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                key = (
                    plain("*", name),
                    entry["dtype"],
                    end - begin,
                    self._beyond(name),
                    *entry["shape"],
                )
                if key in counts:
                    counts[key] += 1
                elif len(counts) < _GROUPS_MOST and _is_sound(*key[1:]):
                    counts[key] = 1
                else:
                    self.overflow = True
                    return
        except (TypeError, KeyError) as error:
            raise ValueError("a tensor is not described soundly") from error

    def _beyond(self, name: str) -> bool:
        layer = _LAYER.search(name) if self._layers else None
        if layer is None or int(layer[1][:9]) < self._layers:
            return False
        return not TOWER.search(name)

    def groups(self) -> tuple[Group, ...]:
        found = (
            Group(name[:_NAME_LIMIT], dtype, tuple(shape), count, size, beyond)
            for (name, dtype, size, beyond, *shape), count in self._counts.items()
        )
        return tuple(sorted(found, key=lambda g: (g.name, g.dtype, g.shape, g.beyond)))


def _is_sound(dtype: Any, size: Any, beyond: bool, *shape: Any) -> bool:
    """Raises TypeError for what no tensor has."""
    numbers = (size, *shape)
    if not isinstance(dtype, str) or any(type(n) is not int or n < 0 for n in numbers):
        raise TypeError(dtype)
    return len(dtype) < 16


def _files(path: str) -> list[str]:
    """The checkpoint's files: those of the index, or every safetensors file.

    Raises OSError or ValueError where the folder or its index cannot be read.  Whether the index
    is sound is another check's matter.
    """
    names = sorted(os.listdir(path))
    if INDEX in names:
        # the file may hold 200,000 names, and only the shards' are asked for
        named = set(_SHARD.findall(_read(os.path.join(path, INDEX))))
        return sorted(n for n in map(os.fsdecode, named) if os.path.basename(n) == n)
    if SINGLE in names:
        return [SINGLE]
    return [n for n in names if n.endswith(".safetensors")]


def _read(path: str) -> bytes:
    file, size = open_regular(path)
    with file:
        if size > _FILE_LIMIT:
            raise ValueError(path)
        return file.read(_FILE_LIMIT)


def _json(path: str) -> dict[str, Any]:
    body = json.loads(_read(path))
    if not isinstance(body, dict):
        raise ValueError(path)
    return body


def _header(path: str) -> dict[str, Any]:
    file, size = open_regular(path)
    with file:
        start = file.read(8)
        if len(start) < 8:
            raise ValueError(path)
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, HEADER_LIMIT):
            raise ValueError(path)
        body = json.loads(file.read(length))
    if not isinstance(body, dict):
        raise ValueError(path)
    return body


PROBE = Probe("checkpoint", CheckpointFacts, _collect, timeout=30.0)
