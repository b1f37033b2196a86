"""What a model folder says about itself, read without any library.

Sizes come from ``config.json`` (``text_config`` for a multimodal wrapper), the
dtype from there too or, where it is silent, from the first floating tensor of
the checkpoint, which is what transformers' ``auto`` does.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelError

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float32"}
_NAMES = frozenset(_DTYPES.values())

#: Bytes of one element.
ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}

#: Places of a shard that its fingerprint looks at, evenly spread, and bytes at each: the whole of
#: a large model takes minutes to read.
_LOOKS, _LOOK = 32, 4096

#: A safetensors header longer than this is refused, as the format itself does.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a checkpoint."""

    path: Path
    hidden: int
    layers: int
    vocab: int
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``: what ``auto`` means for this checkpoint."""
    experts: int
    """Routed experts of a layer; 0 for a dense model."""
    weight_bytes: int
    """Sum of the shards' sizes."""
    weight_width: float
    """Bytes of one weight as stored: less than the dtype's in a quantised checkpoint."""
    fingerprint: str
    """sha256 over ``config.json``, the shards' names and sizes, and a little of each: two
    fine-tunes of one model differ in nothing but the weights, and in nearly all of them."""


def read(path: Path) -> ModelInfo:
    """Raises ModelError naming what is missing."""
    raw, config = _config(path)
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    shards = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".bin"))
    fingerprint = _fingerprint(raw, shards)  # the first to read the shards: it names a broken one
    dtype = _dtype(config, text, shards)
    return ModelInfo(
        path=path,
        hidden=_number(path, text, "hidden_size", "n_embd", "d_model"),
        layers=_number(path, text, "num_hidden_layers", "n_layer", "num_layers"),
        vocab=_number(path, text, "vocab_size"),
        dtype=dtype,
        experts=_experts(text),
        weight_bytes=sum(p.stat().st_size for p in shards),
        weight_width=_width(config, text, dtype),
        fingerprint=fingerprint,
    )


def run_dtype(asked: str, info: ModelInfo) -> str:
    """The dtype that the profile's ``model.dtype`` means for this checkpoint."""
    return info.dtype if asked == "auto" else asked


def shard_names(path: Path) -> list[str]:
    """Files of the checkpoint: those of its index, or every safetensors file without one."""
    index = path / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return sorted(str(n) for n in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return sorted(p.name for p in path.glob("*.safetensors"))


def _config(path: Path) -> tuple[bytes, dict[str, Any]]:
    file = path / "config.json"
    try:
        raw = file.read_bytes()
        config = json.loads(raw)
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read ({error.strerror}): model.path must name a model's folder"
        ) from None
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}): copy the model again") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} is not a JSON object: copy the model again")
    return raw, config


def _number(path: Path, config: dict[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise ModelError(f"{path / 'config.json'} does not say {names[0]}: it is no decoder's config")


def _experts(config: dict[str, Any]) -> int:
    for name in ("n_routed_experts", "num_local_experts", "num_experts"):
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _dtype(config: dict[str, Any], text: dict[str, Any], shards: list[Path]) -> str:
    for part in (config, text):
        for key in ("dtype", "torch_dtype"):
            name = str(part.get(key) or "").removeprefix("torch.")
            if name in _NAMES:
                return name
    for shard in shards:
        found = _first_floating(shard)
        if found:
            return found
    return "float32"


def _width(config: dict[str, Any], text: dict[str, Any], dtype: str) -> float:
    """Bytes of a stored weight, by the number of bits a quantisation names; 1 if it names none."""
    quantised = config.get("quantization_config") or text.get("quantization_config")
    if not quantised:
        return ITEM_SIZE[dtype]
    bits = re.search(r'"(?:num_|w)?bits"\s*:\s*(\d+)', json.dumps(quantised))
    return max(1, int(bits.group(1))) / 8 if bits else 1


def _first_floating(shard: Path) -> str:
    """The dtype of the first floating tensor of a safetensors file; "" when there is none."""
    if shard.suffix != ".safetensors":
        return ""
    try:
        with shard.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length)) if length <= _MAX_HEADER else {}
        kinds = [t["dtype"] for n, t in header.items() if n != "__metadata__"]
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError):
        return ""
    return next((_DTYPES[kind] for kind in kinds if kind in _DTYPES), "")


def _fingerprint(config: bytes, shards: list[Path]) -> str:
    digest = hashlib.sha256(config)
    for shard in shards:
        try:
            size = shard.stat().st_size
            digest.update(f"\0{shard.name}\0{size}".encode())
            with shard.open("rb", buffering=0) as file:
                for place in range(_LOOKS):
                    file.seek(size * place // _LOOKS)
                    digest.update(file.read(_LOOK))
        except OSError as error:
            raise ModelError(
                f"{shard} cannot be read ({error.strerror}): copy the model again, or mend its "
                "permissions"
            ) from None
    return digest.hexdigest()
