"""The model folder: verdicts from facts, and real files that are broken in one place each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eagle3_agent.preflight.check import known
from eagle3_agent.preflight.model import folder as model
from eagle3_agent.preflight.model import safetensors
from eagle3_agent.preflight.model.model_facts import PROBE, BadShard, ModelFacts
from eagle3_agent.protocol.values import Verdict
from support import models
from support.preflight import gather, profile

WHOLE = ModelFacts(
    path="/m",
    architecture="LlamaForCausalLM",
    layers=4,
    hidden=16,
    vocab=100,
    dtype="bfloat16",
    shards=2,
    bytes=5 * 1024**3,
    tokenizer=True,
)


def verdict(**changes: object) -> Verdict:
    seen = ModelFacts(**{**WHOLE.__dict__, **changes})
    return model.CHECK.decide(known((PROBE, seen)), profile())


def test_a_whole_checkpoint_passes_with_its_figures() -> None:
    found = verdict()
    assert found.status == "pass"
    assert found.saw == "LlamaForCausalLM, 4 layers, hidden 16, bfloat16: 2 shards whole, 5.0 GiB"


def test_a_hub_name_blocks_and_says_how_to_download() -> None:
    found = verdict(path="moonshotai/Kimi-K2.5", problem="is not a whole path")
    assert found.status == "block"
    assert "huggingface-cli download moonshotai/Kimi-K2.5 --local-dir" in found.todo


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problem": "does not exist"}, "/m does not exist"),
        ({"config_problem": "config.json is not there"}, "config.json is not there"),
        ({"index_problem": "the index has no weight_map"}, "no weight_map"),
        ({"shards": 0}, "no weights"),
        ({"bad": (BadShard("a", "is 1 bytes too short"),), "bad_count": 1}, "too short"),
    ],
)
def test_what_blocks(change: dict[str, object], words: str) -> None:
    found = verdict(**change)
    assert found.status == "block"
    assert words in found.saw
    assert found.todo


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shards": 0, "other_weights": ("pytorch_model.bin",)}, "pytorch_model.bin"),
        ({"tokenizer": False}, "no tokenizer"),
        ({"custom_code": True}, "trust_remote_code"),
    ],
)
def test_what_warns(change: dict[str, object], words: str) -> None:
    found = verdict(**change)
    assert found.status == "warn"
    assert words in found.saw


def test_many_bad_shards_are_counted() -> None:
    bad = tuple(BadShard(f"model-{i}", "is not there") for i in range(20))
    found = verdict(bad=bad, bad_count=64, shards=64)
    assert "64 of 64 shards" in found.saw
    assert "and 59 more" in found.saw


# ------------------------------------------------------------------ real folders


def look(folder: Path | str) -> tuple[ModelFacts, Verdict]:
    asked = profile(model_path=str(folder))
    facts = gather(PROBE, asked)
    return facts.get(PROBE), model.CHECK.decide(facts, asked)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_real_checkpoint_is_whole(tmp_path: Path, shards: int) -> None:
    seen, found = look(models.make_checkpoint(tmp_path / "m", shards=shards))
    assert found.status == "pass"
    assert (seen.layers, seen.hidden, seen.vocab, seen.shards) == (4, 16, 100, shards)
    assert seen.bytes == sum(p.stat().st_size for p in (tmp_path / "m").glob("*.safetensors"))


def test_the_last_of_many_shards_one_byte_short(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", layers=200, shards=200)
    last = folder / "model-00200-of-00200.safetensors"
    size = last.stat().st_size
    os.truncate(last, size - 1)
    seen, found = look(folder)
    assert found.status == "block"
    assert [b.name for b in seen.bad] == [last.name]
    assert f"is 1 bytes too short ({size - 1} of {size})" in found.saw
    assert last.name in found.todo


def test_a_shard_that_is_too_long(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=1)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0\0")
    assert "is 2 bytes too long" in look(folder)[1].saw


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    found = look(folder)[1]
    assert found.status == "block"
    assert "model-00002-of-00003.safetensors cannot be read: No such file" in found.saw


def test_shards_without_their_index_are_counted(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00003-of-00003.safetensors").unlink()
    found = look(folder)[1]
    assert found.status == "block"
    assert "2 of 3 shards" in found.saw


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = look(folder)[1]
    assert found.status == "block"
    assert "lacks 1 of the 3 tensors that the index puts there, such as lm_head.weight" in found.saw


def test_an_index_that_points_outside_the_folder(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "outside the model folder" in look(folder)[1].saw


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    found = look(folder)[1]
    assert found.status == "block"
    assert "index.json" in found.saw


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    (folder / "config.json").write_text(text, encoding="latin-1")
    found = look(folder)[1]
    assert found.status == "block"
    assert "config.json" in found.saw


@pytest.mark.parametrize("nested", ["text_config", "language_config", "llm_config"])
def test_sizes_of_a_multimodal_wrapper(tmp_path: Path, nested: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    inner = models.config(61, 7168)
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25", nested: inner}))
    seen = look(folder)[0]
    assert (seen.layers, seen.hidden) == (61, 7168)


def test_the_dtype_of_a_silent_config_is_the_checkpoints(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", torch_dtype=None)
    models.write_safetensors(folder / "model-00001-of-00002.safetensors", {
        "model.layers.0.mlp.weight": ("F32", (2,)), "model.layers.2.mlp.weight": ("F32", (2,)),
    })  # fmt: skip
    assert look(folder)[0].dtype == "float32"


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "fifo"])
def test_a_folder_that_is_none(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "m"
    if kind == "file":
        folder.write_text("x")
    elif kind == "empty":
        folder.mkdir()
    elif kind == "fifo":
        os.mkfifo(folder)
    found = look(folder)[1]
    assert found.status == "block"
    assert "Traceback" not in found.saw


def test_a_symlinked_cache_with_a_blob_that_is_gone(tmp_path: Path) -> None:
    blobs = models.make_checkpoint(tmp_path / "blobs", shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(blob)
    assert look(snapshot)[1].status == "pass"
    (blobs / "model-00001-of-00002.safetensors").unlink()
    found = look(snapshot)[1]
    assert found.status == "block"
    assert "a symlink to" in found.saw


def test_hostile_file_names_are_shown_printable(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=1)
    (folder / "model.safetensors").unlink()
    name = os.fsencode(folder) + b"/a\x1b[2J\xff\n$(reboot).safetensors"
    Path(os.fsdecode(name)).write_bytes(b"nothing")
    found = look(folder)[1]
    assert found.status == "block"
    assert "\x1b" not in found.saw + found.todo
    assert r"\x1b[2J\xff\n$(reboot)" in found.saw
    (found.saw + found.todo).encode("utf-8")


# ------------------------------------------------------------------ one safetensors file


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
