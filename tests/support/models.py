"""Tiny checkpoints without torch: config.json and safetensors files written by hand."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}

Shapes = Mapping[str, tuple[str, Sequence[int]]]
"""Tensor name -> (dtype of the format, shape)."""


def write_safetensors(path: Path, tensors: Shapes, *, fill: bytes = b"\0") -> int:
    """A sound file, every byte of data ``fill``; returns its size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + _WIDTHS[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return write_raw_safetensors(path, json.dumps(header).encode(), fill * end)


def write_raw_safetensors(path: Path, header: bytes, data: bytes = b"") -> int:
    """Any header, sound or not, after its length."""
    return path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def config(layers: int = 4, hidden: int = 16, **more: Any) -> dict[str, Any]:
    """A small Llama's ``config.json``."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": 100,
        "torch_dtype": "bfloat16",
        **more,
    }


def make_checkpoint(
    folder: Path, *, layers: int = 4, hidden: int = 16, shards: int = 2, **more: Any
) -> Path:
    """A folder with config, tokenizer, ``shards`` files and their index (none for one shard)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(layers, hidden, **more)))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model.layers.{i}.mlp.weight" for i in range(layers)]
    if shards == 1:
        write_safetensors(
            folder / "model.safetensors", dict.fromkeys(names, ("BF16", (hidden, hidden)))
        )
        return folder
    placed: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        here = names[shard::shards]
        write_safetensors(folder / file, dict.fromkeys(here, ("BF16", (hidden, hidden))))
        placed |= dict.fromkeys(here, file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
