"""Output folder and disk: verdicts from facts, and real folders, a full filesystem too."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.data.data_facts import DataFacts
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.preflight.output import disk, inside
from eagle3_agent.preflight.output import folder as output
from eagle3_agent.preflight.output.inside import Inside, Marked
from eagle3_agent.preflight.output.output_facts import PROBE, OutputFacts
from eagle3_agent.protocol.values import Profile, Verdict
from support.preflight import gather, profile

MARK = Marked("/models/tiny", "/data/train.jsonl", (1, 3), "speculators-pt", "0004")
THERE = OutputFacts("/out/run", place="/out/run", exists=True, free=10**12, total=2 * 10**12)


def verdict(**changes: Any) -> Verdict:
    return output.CHECK.decide(known((PROBE, replace(THERE, **changes))), profile())


def holding(**held: Any) -> Verdict:
    """Of a folder with this in it."""
    return verdict(inside=Inside(**held), device=7, inode=70)


# ------------------------------------------------------------------ output


def test_a_writable_folder_passes() -> None:
    assert verdict().status == "pass"
    found = verdict(exists=False, place="/out")
    assert found.status == "pass"
    assert "/out/run will be made: written" in found.saw
    deeper = verdict(exists=False, place="/")
    assert "/out/run will be made in /: written" in deeper.saw


def test_a_folder_that_cannot_be_written_blocks() -> None:
    found = verdict(problem="cannot be written: Permission denied")
    assert found.status == "block"
    assert "Permission denied" in found.saw


def test_samples_of_the_same_kind_are_kept_and_counted() -> None:
    found = holding(marker=MARK, samples=12, kept=10, kept_bytes=2**30)
    assert found.status == "pass"
    assert "of which 10 would be kept, 1.0 GiB" in found.saw
    assert "run 0004" in found.saw


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/models/other"}, "model /models/other there, /models/tiny asked"),
        ({"data": "/data/other"}, "data /data/other there"),
        ({"layers": (1, 2)}, "layers [1, 2] there, [1, 3] asked"),
        ({"output_format": "safetensors"}, "format safetensors there"),
    ],
)
def test_samples_of_another_kind_block(change: dict[str, Any], words: str) -> None:
    found = holding(marker=replace(MARK, **change), samples=3)
    assert found.status == "block"
    assert words in found.saw
    assert "another output.dir" in found.todo


def test_what_stands_in_the_way_can_be_moved_aside() -> None:
    found = holding(marker=replace(MARK, layers=(9,)), samples=3)
    (action,) = found.actions
    assert (action.kind, action.path, action.device, action.inode) == (
        "move-aside",
        "/out/run",
        7,
        70,
    )
    assert action.aside.startswith("/out/run.aside-")
    assert holding(samples=3).actions
    assert holding(marker_problem="not JSON").actions
    assert not holding(marker=MARK, samples=12).actions
    linked = verdict(inside=Inside(samples=3), device=7, inode=70, link=True)
    assert (linked.status, linked.actions) == ("block", ())


def test_samples_that_nobody_knows_block() -> None:
    assert holding(samples=3).status == "block"
    assert holding(marker_problem="cannot be understood: not JSON").status == "block"


def test_a_file_that_a_trainer_would_take_for_a_sample_warns() -> None:
    found = holding(strangers=("token_freq.pt",))
    assert found.status == "warn"
    assert "token_freq.pt" in found.saw


def test_where_a_symlink_leads_is_told() -> None:
    assert "really at /mnt/big" in verdict(real="/mnt/big").saw


def test_a_mount_that_hangs_blocks_output_and_warns_for_disk() -> None:
    silent = Facts(silent={"output": "did not answer within 15 s"})
    assert output.CHECK.decide(silent, profile()).status == "block"
    assert disk.CHECK.decide(silent, profile()).status == "warn"


# ------------------------------------------------------------------ disk

MODEL_FACTS = ModelFacts("/m", layers=61, hidden=7168, dtype="bfloat16")
DATA_FACTS = DataFacts("/d", kind="JSONL", rows=10, tokens=1000, tokens_exact=True)
NEED = 1000 * (2 * 7168 * 2 + 16)


def room(
    free: int | None,
    *,
    model: ModelFacts | None = MODEL_FACTS,
    data: DataFacts | None = DATA_FACTS,
    asked: Profile | None = None,
    **changes: Any,
) -> Verdict:
    pairs: list[tuple[Any, Any]] = [(PROBE, replace(THERE, free=free, **changes))]
    pairs += [(MODEL, model)] if model else []
    pairs += [(DATA, data)] if data else []
    return disk.CHECK.decide(known(*pairs), asked or profile())


def test_the_prediction_shows_its_arithmetic() -> None:
    found = room(10**12)
    assert found.status == "pass"
    assert "predicted 27.4 MiB (1 000 tokens × 2 layers × 7 168 × 2 bytes)" in found.saw


@pytest.mark.parametrize(
    ("free", "status"),
    [
        (NEED - 1, "block"),
        (NEED, "warn"),
        (int(NEED * 1.07), "warn"),
        (int(NEED * 1.11), "pass"),
        (0, "block"),
    ],
)
def test_free_space_against_the_prediction(free: int, status: str) -> None:
    assert room(free).status == status


def test_what_is_there_already_does_not_have_to_fit_again() -> None:
    assert room(NEED // 2, inside=Inside(kept_bytes=NEED, kept=10)).status == "pass"
    assert " there already" in room(NEED // 2, inside=Inside(kept_bytes=NEED, kept=10)).saw


def test_float32_states_take_twice_the_room() -> None:
    asked = profile(model_dtype="float32")
    found = room(int(NEED * 1.5), asked=asked)
    assert found.status == "block"
    assert "× 4 bytes" in found.saw
    assert room(int(NEED * 1.5), model=replace(MODEL_FACTS, dtype="float32")).status == "block"


def test_an_estimate_says_so() -> None:
    assert "about 1 000 tokens" in room(10**12, data=replace(DATA_FACTS, tokens_exact=False)).saw


def test_too_few_inodes_block() -> None:
    found = room(10**12, inodes=9)
    assert found.status == "block"
    assert "9 file entries free, 10 files to write" in found.saw
    assert room(10**12, inodes=10).status == "pass"


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"data": None},
        {"model": ModelFacts("/m")},
        {"data": DataFacts("/d", problem="does not exist")},
    ],
)
def test_without_a_prediction_the_free_space_is_told(change: dict[str, Any]) -> None:
    found = room(2**30, **change)
    assert found.status == "warn"
    assert "1.0 GiB free" in found.saw


def test_unknown_space_warns() -> None:
    assert room(None).status == "warn"


# ------------------------------------------------------------------ real folders


def look(folder: Path | str, **changes: Any) -> tuple[OutputFacts, Verdict]:
    asked = profile(output_dir=str(folder), **changes)
    facts = gather(PROBE, asked)
    return facts.get(PROBE), output.CHECK.decide(facts, asked)


def test_the_write_probe_leaves_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    assert look(there)[1].status == "pass"
    assert list(there.iterdir()) == []
    seen, found = look(tmp_path / "a" / "b" / "c")
    assert found.status == "pass"
    assert (seen.exists, seen.place) == (False, str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_a_trailing_slash_means_the_same_folder(tmp_path: Path) -> None:
    assert look(f"{tmp_path}/")[0].exists


def test_what_cannot_be_a_folder_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name, words in (
        ("file", "is a file"),
        ("file/below", "is a file"),
        ("gone/below", "a symlink to nothing"),
        ("loop", "Too many levels"),
    ):
        found = look(tmp_path / name)[1]
        assert found.status == "block"
        assert words in found.saw
    assert "must begin with /" in look("out")[1].saw
    assert look("/proc/eagle3")[1].status == "block"


def test_a_symlinked_folder_is_followed_and_told(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    seen, found = look(tmp_path / "link")
    assert found.status == "pass"
    assert seen.real == str(tmp_path / "real")


def written(folder: Path, **changes: Any) -> Path:
    """An output folder as the worker leaves it: two samples, one of them cut off later."""
    folder.mkdir()
    marker = {
        "format": 1, "run": "0004", "model": "/models/tiny", "model_fingerprint": "x",
        "data": "/data/train.jsonl", "data_fingerprint": "y", "layers": [1, 3],
        "convention": "…", "dtype": "bfloat16", "hidden": 16, "output_format": "speculators-pt",
    }  # fmt: skip
    (folder / "eagle3.json").write_text(json.dumps({**marker, **changes}))
    lines = [json.dumps({"file": f"data_{i}.pt", "bytes": 100}) for i in (0, 1, 2)]
    torn = '{"file": "data_9'
    (folder / "manifest.jsonl").write_text("\n".join([*lines, "[]", '{"file": 5}', torn]))
    (folder / "data_0.pt").write_bytes(bytes(100))
    (folder / "data_1.pt").write_bytes(bytes(99))
    return folder


def test_a_resume_counts_the_files_that_are_as_the_manifest_says(tmp_path: Path) -> None:
    seen, found = look(written(tmp_path / "out"))
    assert (seen.inside.samples, seen.inside.kept, seen.inside.kept_bytes) == (2, 1, 100)
    assert found.status == "pass"
    assert "of which 1 would be kept" in found.saw


def test_a_folder_of_another_run_blocks(tmp_path: Path) -> None:
    found = look(written(tmp_path / "out", layers=[0, 1, 2, 3]))[1]
    assert found.status == "block"
    assert "layers [0, 1, 2, 3] there, [1, 3] asked" in found.saw


def test_the_offer_names_the_folder_as_it_is(tmp_path: Path) -> None:
    real = tmp_path / "disk" / "out"
    real.mkdir(parents=True)
    (real / "data_0.pt").touch()
    (tmp_path / "way").symlink_to(tmp_path / "disk")
    (action,) = look(tmp_path / "way" / "out")[1].actions
    assert action.path == str(real)
    assert action.inode == real.stat().st_ino
    assert action.aside.startswith(f"{real}.aside-20")
    (tmp_path / "link").symlink_to(real)
    assert look(tmp_path / "link")[1].actions == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 5}'])
def test_a_marker_that_is_none_blocks(tmp_path: Path, text: str) -> None:
    folder = written(tmp_path / "out")
    (folder / "eagle3.json").write_text(text)
    found = look(folder)[1]
    assert found.status == "block"
    assert "eagle3.json" in found.saw


def test_what_of_many_samples_is_kept_is_told_in_time_and_said_to_be_about(tmp_path: Path) -> None:
    folder = written(tmp_path / "out")
    with (folder / "manifest.jsonl").open("w") as manifest:
        for index in range(2000):
            (folder / f"data_{index}.pt").write_bytes(b"x" * 10)
            size = 10 if index % 2 else 11  # every other one is not what the manifest says
            manifest.write(json.dumps({"file": f"data_{index}.pt", "bytes": size}) + "\n")
    whole = inside.look(str(folder))
    assert (whole.kept, whole.kept_bytes, whole.exact) == (1000, 10_000, True)
    part = inside.look(str(folder), patience=0.0)
    assert (part.samples, part.exact) == (2000, False)
    assert part.kept <= 2000
    found = verdict(inside=replace(part, marker=MARK))
    assert f"about {part.kept:,} would be kept".replace(",", " ") in found.saw


def test_what_is_compared_stands_for_the_rest(tmp_path: Path) -> None:
    names = [f"data_{index}.pt" for index in range(1000)]
    for name in names[:500]:
        (tmp_path / name).write_bytes(b"x")
    sizes, compared = inside._kept(str(tmp_path), names, dict.fromkeys(names, 1), 0.0)
    assert compared == 100
    assert 40 <= len(sizes) <= 60


@pytest.mark.parametrize("held", ["model", "data", "home"])
def test_a_folder_that_holds_what_is_needed_is_not_offered_to_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "data_0.pt").write_bytes(b"")
    changes = {} if held == "home" else {f"{held}_path": str(folder / held)}
    assert look(folder)[1].actions
    if held == "home":
        monkeypatch.setenv("HOME", str(folder))
    found = look(folder, **changes)[1]
    assert (found.status, found.actions) == ("block", ())


def test_the_models_own_folder_and_one_within_another_runs_output(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    own = look(model, model_path=f"{model}/")[1]
    assert (own.status, "the model's own folder" in own.saw) == ("block", True)
    outer = written(tmp_path / "outer")
    for folder in (outer / "new", outer / "deep" / "er"):
        found = look(folder)[1]
        assert (found.status, f"lies within {outer}" in found.saw) == ("warn", True)


def test_a_folder_is_no_stranger_whatever_its_name_ends_in(tmp_path: Path) -> None:
    folder = written(tmp_path / "out")
    (folder / "opt").mkdir()
    assert look(folder)[1].status == "pass"


def test_files_of_unknown_origin_block_and_strangers_warn(tmp_path: Path) -> None:
    (tmp_path / "data_7.pt").write_bytes(b"x")
    assert "no eagle3.json" in look(tmp_path)[1].saw
    (tmp_path / "data_7.pt").rename(tmp_path / "evil\x1b[2J\n.pt")
    found = look(tmp_path)[1]
    assert found.status == "warn"
    assert "\x1b" not in found.saw


def test_fifos_in_place_of_marker_and_manifest_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "eagle3.json")
    os.mkfifo(tmp_path / "manifest.jsonl")
    found = look(tmp_path)[1]
    assert found.status == "block"
    assert "not a regular file" in found.saw


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB and 16 inodes."""
    place = tmp_path / "small"
    place.mkdir()
    options = "size=1m,nr_inodes=16"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip(f"no filesystem can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_filesystem_blocks_and_keeps_nothing(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(1024 * 1024 - 16 * 1024))
    before = sorted(os.listdir(small_disk))
    found = look(small_disk)[1]
    assert found.status == "block"
    assert "No space left" in found.saw
    assert look(small_disk / "new")[1].status == "block"
    assert sorted(os.listdir(small_disk)) == before


def test_a_filesystem_without_inodes_blocks(small_disk: Path) -> None:
    for i in range(15):
        (small_disk / f"f{i}").touch()
    assert look(small_disk)[1].status == "block"


def test_the_room_of_a_small_filesystem_is_seen(small_disk: Path) -> None:
    seen, _ = look(small_disk / "run")
    assert seen.free is not None
    assert seen.free <= 1024 * 1024
    assert seen.inodes is not None
    assert seen.inodes < 16
    facts = known((PROBE, seen), (MODEL, MODEL_FACTS), (DATA, DATA_FACTS))
    assert disk.CHECK.decide(facts, profile()).status == "block"


def test_a_read_only_filesystem_blocks(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = look(small_disk)[1]
    assert found.status == "block"
    assert "Read-only" in found.saw
