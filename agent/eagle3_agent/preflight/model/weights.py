"""The shards of a model folder against each other, their index and the file system."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from . import jsonfile, safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_INDEX_LIMIT = 256 * 1024 * 1024
_SHARDS_MOST = 10_000
_KEPT = 20
_NUMBERED = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors")
#: Safetensors that are no part of the checkpoint that transformers and vLLM load.
_ASIDE = re.compile(r"consolidated.*|adapter_model.*|.*\.lora\..*")
_PARTIAL = (".incomplete", ".part", ".partial", ".aria2", ".crdownload")


@dataclass(frozen=True)
class BadShard:
    name: str
    problem: str


@dataclass(frozen=True)
class Count:
    """How many, and one of them."""

    count: int = 0
    example: str = ""


@dataclass
class Weights:
    """What the shards of one folder hold, each looked at once."""

    index_problem: str = ""
    shards: int = 0
    bytes: int = 0
    data: int = 0
    bad: list[BadShard] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    dtype: str = ""
    dtypes: dict[str, int] = field(default_factory=dict)
    embedding: tuple[int, ...] = ()
    index_total: int | None = None
    unindexed: Count = field(default_factory=Count)
    doubled: Count = field(default_factory=Count)
    extra: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    tensors: dict[str, str] = field(default_factory=dict)
    """Tensor -> the shard that holds it."""


def read(path: str, names: list[str]) -> Weights:
    """Look at every shard that ``names``, the folder's list, and the index say there is."""
    found = Weights(partial=_partial(path, names))
    present = [n for n in names if n.endswith(".safetensors") and not _ASIDE.fullmatch(n)]
    if INDEX in names:
        wanted = _read_index(path, found)
        for name in sorted(wanted):
            _look(path, name, found, wanted[name])
        found.extra = [n for n in present if wanted and n not in wanted]
        return found
    single = [SINGLE] if SINGLE in present else present
    for name in single:
        _look(path, name, found)
    _check_numbers(single, found)
    found.extra = [n for n in present if n not in single]
    if not present:
        found.others = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".gguf"))]
    return found


def _check_numbers(names: list[str], found: Weights) -> None:
    """``model-00002-of-00003`` says how many there should be, index or not."""
    numbered = [m for m in map(_NUMBERED.fullmatch, names) if m]
    totals = sorted({(m[1], int(m[3])) for m in numbered})
    if len(totals) > 1:
        sets = " and ".join(f"{stem}-…-of-{total}" for stem, total in totals[:4])
        found.index_problem = f"{INDEX} is not there, and the shards are of several sets: {sets}"
    elif totals and totals[0][1] != len(names):
        total = totals[0][1]
        there = {int(m[2]) for m in numbered}
        first = next((i for i in range(1, min(total, 10**6) + 1) if i not in there), 0)
        missing = f"; number {first} is the first that is missing" if first else ""
        found.index_problem = (
            f"{INDEX} is not there, and {len(names)} of {total} shards are{missing}"
        )


def _read_index(path: str, found: Weights) -> dict[str, set[str]]:
    """Shard -> tensors that the index puts there; what is wrong with it is in ``found``."""
    body, found.index_problem = jsonfile.read(os.path.join(path, INDEX), _INDEX_LIMIT)
    mapping = body.get("weight_map")
    if found.index_problem:
        return {}
    if not isinstance(mapping, dict) or not mapping:
        found.index_problem = f"{INDEX} has no weight_map"
        return {}
    metadata = body.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # transformers has written it as a float too
    if isinstance(total, (int, float)) and 0 < total < 2**60:
        found.index_total = int(total)
    wanted: dict[str, set[str]] = {}
    for tensor, shard in mapping.items():
        wanted.setdefault(str(shard), set()).add(tensor)
    if len(wanted) > _SHARDS_MOST:
        found.index_problem = f"{INDEX} names {len(wanted)} shards, more than any checkpoint has"
        return {}
    return wanted


def _look(path: str, name: str, found: Weights, wanted: set[str] | None = None) -> None:
    found.shards += 1
    if os.path.basename(name) != name or name in ("", ".", ".."):
        found.bad.append(BadShard(name, "is named by the index outside the model folder"))
        return
    try:
        contents = safetensors.read(os.path.join(path, name))
    except safetensors.BadFile as error:
        found.bad.append(BadShard(name, str(error)))
        return
    found.bytes += contents.size
    found.data += contents.data
    found.dtype = found.dtype or contents.dtype
    found.embedding = found.embedding or contents.embedding
    for dtype, count in contents.dtypes.items():
        found.dtypes[dtype] = found.dtypes.get(dtype, 0) + count
    twice = contents.tensors & found.tensors.keys()
    found.doubled = _more(found.doubled, twice)
    found.tensors.update(dict.fromkeys(contents.tensors, name))
    if wanted is None:
        return
    found.unindexed = _more(found.unindexed, contents.tensors - wanted - twice)
    missing = wanted - contents.tensors
    if missing:
        problem = (
            f"lacks {len(missing)} of the {len(wanted)} tensors that the index puts there, "
            f"such as {min(missing)[:200]}"
        )
        found.bad.append(BadShard(name, problem))


def _more(count: Count, names: set[str] | frozenset[str]) -> Count:
    if not names:
        return count
    return Count(count.count + len(names), count.example or min(names)[:200])


def _partial(path: str, names: list[str]) -> list[str]:
    """Files of a download that did not end, in the folder and where hub clients keep theirs.

    ``huggingface_hub`` writes ``<blob>.incomplete`` below ``.cache/huggingface/download`` of a
    local folder, and beside the blobs that a cache's snapshots point to.
    """
    found = [n for n in names if n.endswith(_PARTIAL)]
    places = [os.path.join(path, ".cache", "huggingface", "download")]
    parent = os.path.dirname(os.path.normpath(path))
    if os.path.basename(parent) == "snapshots":
        places.append(os.path.join(os.path.dirname(parent), "blobs"))
    for place in places:
        try:
            found += sorted(n for n in os.listdir(place) if n.endswith(".incomplete"))
        except OSError:
            continue
    return found[:_KEPT]
