"""One safetensors file against its own header: broken in one place each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eagle3_agent.preflight.model import safetensors
from support import models


def entry(begin: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "not JSON"),
        (b"[]", b"", "not a JSON object"),
        (b"[" * 50_000, b"", "not JSON"),
        (json.dumps({"a": entry(0, 4, [5])}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": entry(4, 0, [4])}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": entry(-4, 0, [4])}).encode(), b"", "wrongly"),
        (json.dumps({"a": 5}).encode(), b"", "wrongly"),
        (json.dumps({"a": {**entry(0, 4, [4]), "dtype": ["F32"]}}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": entry(0, 4, [4]), "b": entry(6, 8, [2])}).encode(), bytes(8), "a hole"),
        (json.dumps({"a": entry(2, 4, [2])}).encode(), bytes(4), "a hole before tensor 'a'"),
        (
            json.dumps(
                {k: entry(b, b + 4, [4]) for k, b in (("a", 0), ("b", 0), ("c", 8))}
            ).encode(),
            bytes(12),
            "overlap at tensor 'b'",
        ),
        (json.dumps({"a": entry(0, 4, [4])}).encode("utf-16"), bytes(4), "not JSON"),
        (json.dumps({"a": entry(0, 4, [10**600] * 99)}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": {**entry(0, 4, [4]), "shape": "4"}}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": entry(0, 4, [4], "F32")}).encode(), bytes(4), "wrongly"),
        (json.dumps({"a": entry(0, 4, [4]), "b": entry(2, 6, [4])}).encode(), bytes(6), "overlap"),
    ],
)
def test_a_header_that_contradicts_itself(
    tmp_path: Path, header: bytes, data: bytes, words: str
) -> None:
    path = tmp_path / "x.safetensors"
    models.write_raw_safetensors(path, header, data)
    with pytest.raises(safetensors.BadFile, match=words):
        safetensors.read(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (b"\1\0\0", "too short"),
        (b"\xff" * 64, "a header of 18 446 744 073 709 551 615 bytes"),
        (b"PK\3\4 is a pickle of torch.save " * 4, "does not begin like safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_safetensors(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(safetensors.BadFile, match=words):
        safetensors.read(str(path))


def test_a_fifo_or_a_folder_in_place_of_a_shard_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(safetensors.BadFile, match="not a regular file"):
            safetensors.read(str(tmp_path / name))


def test_an_unknown_dtype_is_left_to_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = json.dumps({"a": entry(0, 3, [6], "F4")}).encode()
    models.write_raw_safetensors(path, header, bytes(3))
    assert safetensors.read(str(path)).tensors == {"a"}
