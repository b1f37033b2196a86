"""What is read of a checkpoint without any library."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.worker import model_info
from eagle3_agent.worker.errors import ModelError

CONFIG = {"hidden_size": 8, "num_hidden_layers": 3, "vocab_size": 50}


def checkpoint(folder: Path, config: dict[str, Any], dtype: str = "BF16") -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "packed": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
            "w": {"dtype": dtype, "shape": [1], "data_offsets": [4, 8]},
        }
    ).encode()
    body = struct.pack("<Q", len(header)) + header + b"\0" * 8
    (folder / "model.safetensors").write_bytes(body)
    return folder


def test_sizes_of_a_plain_and_a_wrapped_config(tmp_path: Path) -> None:
    plain = model_info.read(checkpoint(tmp_path, {**CONFIG, "dtype": "float16"}))
    assert (plain.hidden, plain.layers, plain.vocab, plain.dtype) == (8, 3, 50, "float16")
    assert plain.experts == 0
    inner = {**CONFIG, "n_routed_experts": 4, "torch_dtype": "bfloat16"}
    wrapped = model_info.read(checkpoint(tmp_path, {"text_config": inner, "hidden_size": 999}))
    assert (wrapped.hidden, wrapped.experts, wrapped.dtype) == (8, 4, "bfloat16")
    assert wrapped.fingerprint != plain.fingerprint


def test_fine_tunes_of_one_model_are_two_models(tmp_path: Path) -> None:
    shard = checkpoint(tmp_path, CONFIG) / "model.safetensors"
    size = 1 << 20
    shard.write_bytes(shard.read_bytes() + bytes(size))
    before = model_info.read(tmp_path).fingerprint
    assert model_info.read(tmp_path).fingerprint == before
    body = bytearray(shard.read_bytes())
    body[-size // 2 :] = b"\1" * (size // 2)  # as large as before, and one half of it retrained
    shard.write_bytes(body)
    assert model_info.read(tmp_path).fingerprint != before


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, CONFIG)
    (tmp_path / "model-2.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"model-2\.safetensors cannot be read \(No such file"):
        model_info.read(tmp_path)


@pytest.mark.parametrize(("tag", "dtype"), [("F32", "float32"), ("BF16", "bfloat16")])
def test_a_silent_config_leaves_the_dtype_to_the_weights(
    tmp_path: Path, tag: str, dtype: str
) -> None:
    info = model_info.read(checkpoint(tmp_path, CONFIG, tag))
    assert info.dtype == dtype
    assert model_info.run_dtype("auto", info) == dtype
    assert model_info.run_dtype("float16", info) == "float16"


def test_a_quantised_checkpoint_is_larger_than_it_looks(tmp_path: Path) -> None:
    quantised = {**CONFIG, "quantization_config": {"config_groups": {"g": {"num_bits": 4}}}}
    info = model_info.read(checkpoint(tmp_path, quantised))
    assert info.weight_width == 0.5
    assert model_info.read(checkpoint(tmp_path, CONFIG)).weight_width == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"hidden_size": 8}', "does not say num_hidden_layers"),
        ('{"hidden_size": true}', "does not say hidden_size"),
    ],
)
def test_a_broken_folder_is_named(tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        model_info.read(tmp_path)
    assert text in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    checkpoint(tmp_path, CONFIG)
    assert model_info.shard_names(tmp_path) == ["model.safetensors"]
    index = {"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_info.shard_names(tmp_path) == ["m-1.safetensors", "m-2.safetensors"]
