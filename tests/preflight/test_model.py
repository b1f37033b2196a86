"""The model folder: verdicts from facts, and real files that are broken in one place each."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from eagle3_agent.preflight.check import Ask, Facts, known
from eagle3_agent.preflight.model import decoder
from eagle3_agent.preflight.model import folder as model
from eagle3_agent.preflight.model.decoder import Layers
from eagle3_agent.preflight.model.model_facts import PROBE, BadShard, Count, ModelFacts
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
    found_layers=Layers("model.layers"),
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
        ({"shards": 0, "partial": ("x.incomplete",)}, "unfinished downloads: x.incomplete"),
        ({"found_layers": Layers("m.layers", (2, 3), 2)}, "no tensor of 2 layers is in any shard"),
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
        ({"extra": ("old.safetensors",), "extra_count": 1}, "1 safetensors file beside"),
        ({"unindexed": Count(3, "a.b")}, "3 tensors in the shards, not in the index, such as a.b"),
        ({"doubled": Count(1, "a.b")}, "1 tensor in two shards at once"),
        ({"index_total": 1000, "data": 1002}, "says 1 000 bytes of tensors (total_size)"),
        ({"partial": ("a.incomplete",)}, "unfinished downloads: a.incomplete"),
        ({"found_layers": Layers("h", beyond=2)}, "2 layers past the last of config.json's 4"),
        ({"embedding": (100, 32)}, "the embedding is 32 wide, config.json's hidden size is 16"),
        ({"embedding": (90, 16)}, "the embedding has 90 rows, config.json's vocabulary 100"),
    ],
)
def test_what_warns(change: dict[str, object], words: str) -> None:
    found = verdict(**change)
    assert found.status == "warn"
    assert words in found.saw


def test_mtp_layers_and_an_embedding_of_spare_rows_are_as_they_should_be() -> None:
    seen = {"found_layers": Layers("model.layers", beyond=1), "extra_layers": 1}
    assert verdict(**seen, embedding=(128, 16)).status == "pass"


def test_layers_that_were_not_recognised_are_told_and_not_judged() -> None:
    found = verdict(found_layers=Layers())
    assert found.status == "pass"
    assert "the layers were not recognised in its tensors' names" in found.saw


def test_a_mount_that_hangs_is_told_in_the_checks_own_words() -> None:
    silent = Facts(silent={"model": "did not answer within 30 s"})
    found = model.CHECK.decide(silent, profile())
    assert (found.status, found.saw) == ("block", "did not answer within 30 s")
    assert "mount" in found.todo


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


def test_200_shards_are_read_in_well_under_a_second(tmp_path: Path) -> None:
    """Sparse files: 200 shards that say 2 GiB each, the last one short by a byte."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(models.config(200, 1024)))
    placed = {}
    for i in range(200):
        name = f"model-{i + 1:05d}-of-00200.safetensors"
        tensor = f"model.layers.{i}.mlp.weight"
        described = {tensor: {"dtype": "BF16", "shape": [1024, 2**20], "data_offsets": [0, 2**31]}}
        size = models.write_raw_safetensors(folder / name, json.dumps(described).encode())
        os.truncate(folder / name, size + 2**31 - (i == 199))
        placed[tensor] = name
    index = {"metadata": {"total_size": 200 * 2**31}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    began = time.process_time()
    seen = PROBE.collect(Ask(profile(model_path=str(folder))))
    assert time.process_time() - began < 1.0
    assert [b.name for b in seen.bad] == ["model-00200-of-00200.safetensors"]
    assert "is 1 bytes too short" in seen.bad[0].problem
    assert seen.bytes > 199 * 2**31


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
    assert "number 3 is the first that is missing" in found.saw


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


def test_shards_of_two_checkpoints_in_one_folder(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    models.make_checkpoint(tmp_path / "other", shards=3)
    for shard in (tmp_path / "other").glob("*.safetensors"):
        shard.rename(folder / shard.name)
    seen, found = look(folder)
    assert found.status == "warn"
    assert seen.extra_count == 3
    assert "3 safetensors files beside the checkpoint: model-00001-of-00003" in found.saw
    (folder / "model.safetensors.index.json").unlink()
    found = look(folder)[1]
    assert found.status == "block"
    assert "of several sets: model-…-of-2 and model-…-of-3" in found.saw


def test_a_single_file_beside_an_index_is_told(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    models.write_safetensors(folder / "model.safetensors", {"x": ("U8", (1,))})
    models.write_safetensors(folder / "consolidated-00001.safetensors", {"x": ("U8", (1,))})
    assert look(folder)[0].extra == ("model.safetensors",)


def test_tensors_that_the_index_does_not_name_and_those_that_two_shards_hold(
    tmp_path: Path,
) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    models.write_safetensors(folder / "model-00002-of-00002.safetensors", {
        **dict.fromkeys(
            (f"model.layers.{i}.mlp.weight" for i in (0, 1, 3)), ("BF16", (16, 16))
        ),
        "stranger": ("U8", (1,)),
    })  # fmt: skip
    seen, found = look(folder)
    assert (seen.doubled, seen.unindexed) == (
        Count(1, "model.layers.0.mlp.weight"),
        Count(1, "stranger"),
    )
    assert found.status == "warn"


def test_an_index_whose_total_is_another_one(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for total, status in ((4 * 16 * 16 * 2, "pass"), (4 * 16 * 16 * 4, "warn"), ("x", "pass")):
        path.write_text(json.dumps({**index, "metadata": {"total_size": total}}))
        assert look(folder)[1].status == status, total


def test_a_layer_of_which_nothing_is_there_is_named(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", layers=4)
    (folder / "config.json").write_text(json.dumps(models.config(6)))
    found = look(folder)[1]
    assert found.status == "block"
    assert "no tensor of 2 layers is in any shard (model.layers.4, 5)" in found.saw
    (folder / "config.json").write_text(json.dumps(models.config(3)))
    found = look(folder)[1]
    assert found.status == "warn"
    assert "hold 1 layer past the last of config.json's 3" in found.saw


def test_a_vision_tower_is_not_taken_for_the_decoder() -> None:
    names = [f"vision_tower.encoder.layers.{i}.w" for i in range(30)]
    names += [f"language_model.model.layers.{i}.w" for i in (0, 1, 3)] + ["lm_head.weight"]
    assert decoder.find(names, 4) == Layers("language_model.model.layers", (2,), 1, 0)
    assert decoder.find(names[:30], 4) == Layers()
    assert decoder.find([f"transformer.h.{i}.w" for i in range(3)], 2).beyond == 1
    assert decoder.find(names, None) == Layers()
    names = [f"resampler.layers.{i}.w" for i in range(6)]
    names += [f"model.layers.{i}.w" for i in range(4)]
    assert decoder.find(names, 4) == Layers("model.layers")


@pytest.mark.parametrize("place", ["", ".cache/huggingface/download"])
def test_a_download_that_did_not_end_is_told(tmp_path: Path, place: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place / "abc.incomplete").write_text("")
    found = look(folder)[1]
    assert found.status == "warn"
    assert "unfinished downloads: abc.incomplete" in found.saw


def test_a_cache_with_a_blob_that_is_still_loading(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "models--a--b" / "snapshots" / ("0f" * 20))
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    assert look(folder)[1].status == "pass"
    (blobs / "1234.incomplete").write_text("")
    assert "1234.incomplete" in look(folder)[1].saw


@pytest.mark.parametrize("shard", ["\x00", "\ud800", "a/b", "..", ""])
def test_a_shard_name_that_no_file_can_have(tmp_path: Path, shard: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    index = {"weight_map": {"a": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = look(folder)[1]
    assert found.status == "block"
    assert "failed by itself" not in found.saw


def test_a_shard_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=1)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert "model.safetensors cannot be read: Too many levels" in look(folder)[1].saw


def test_a_config_that_is_a_pointer(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "config.json is a Git LFS pointer" in look(folder)[1].saw


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
