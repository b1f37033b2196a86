"""What is cleared beside the samples: what the record names, never by way of a link or a swap."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import clearing
from eagle3_agent.clearing import Clearing, NotCleared

RUN = "0001"
ARROW = "prepared/data-0123456789abcdef.arrow"
FILES = {
    "sample_lengths.json": b"12",
    "token_freq.bin": b"345",
    ARROW: b"6789",
    "prepared/state.json": b"{}",
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder with one sample, the files above and the record of them."""
    made = tmp_path / "out"
    (made / "prepared").mkdir(parents=True)
    (made / "eagle3.json").write_text(json.dumps({"run": RUN}))
    (made / "data_0.pt").write_bytes(b"sample")
    (made / "manifest.jsonl").write_text('{"file": "data_0.pt", "bytes": 6}\n')
    for name, body in FILES.items():
        (made / name).write_bytes(body)
    record(made, {name: len(body) for name, body in FILES.items()})
    return made


def record(out: Path, sizes: dict[str, Any]) -> None:
    files = {name: {"bytes": size, "sha256": ""} for name, size in sizes.items()}
    (out / clearing.EXTRAS).write_text(json.dumps({"files": files}))


def clear(out: Path, confirm: bool = True) -> Clearing:
    return clearing.clear(out, frozenset({RUN}), confirm)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_of_it_is_counted_first_and_then_goes(out: Path) -> None:
    (out / ".sample_lengths.json.12.partial").write_bytes(b"half")
    (out / "prepared" / ".data.arrow.12.partial").write_bytes(b"half")
    before = tree(out)
    wanted = Clearing(1 + len(FILES) + 2, 6 + 11 + 8, ())
    assert clear(out, confirm=False) == wanted
    assert tree(out) == before
    assert clear(out) == wanted
    assert tree(out) == []


def test_what_has_another_size_or_is_not_recorded_stays(out: Path) -> None:
    (out / "token_freq.bin").write_bytes(b"changed by somebody")
    (out / "data_config.json").write_bytes(b"a user's")
    (out / "prepared" / "vocab.npy").write_bytes(b"a trainer's")
    kept = ("data_config.json", "prepared/vocab.npy", "token_freq.bin")
    assert clear(out, confirm=False) == Clearing(4, 6 + 2 + 4 + 2, kept)
    assert clear(out).kept == kept
    assert tree(out) == sorted((*kept, "prepared"))


@pytest.mark.parametrize(
    "record_of",
    [None, b"not json", b"[]", b'{"files": [1]}', b'{"files": {"token_freq.bin": {"bytes": "x"}}}'],
)
def test_without_a_readable_record_nothing_beside_the_samples_goes(
    out: Path, record_of: bytes | None
) -> None:
    (out / clearing.EXTRAS).unlink()
    if record_of is not None:
        (out / clearing.EXTRAS).write_bytes(record_of)
    there = [clearing.EXTRAS] if record_of else []
    assert clear(out) == Clearing(
        1, 6, tuple(sorted([*there, "prepared", "sample_lengths.json", "token_freq.bin"]))
    )
    assert all((out / name).read_bytes() == body for name, body in FILES.items())


@pytest.mark.parametrize(
    "name",
    ["../precious", "/precious", "notes.txt", "prepared/../notes.txt", "prepared/notes.txt", "."],
)
def test_a_forged_record_owns_only_names_that_a_run_writes(
    out: Path, tmp_path: Path, name: str
) -> None:
    for path in (tmp_path / "precious", out / "notes.txt", out / "prepared" / "notes.txt"):
        path.write_bytes(b"12")
    record(out, {name: 2, "\x00": 2})
    clear(out)
    for path in (tmp_path / "precious", out / "notes.txt", out / "prepared" / "notes.txt"):
        assert path.read_bytes() == b"12"


def test_links_lead_nowhere(out: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    os.rename(out / "prepared", elsewhere)
    (out / "prepared").symlink_to(elsewhere)
    precious = tmp_path / "precious"
    precious.write_bytes(FILES["token_freq.bin"])
    (out / "token_freq.bin").unlink()
    (out / "token_freq.bin").symlink_to(precious)
    assert clear(out).kept == ("prepared", "token_freq.bin")
    assert precious.exists()
    assert tree(elsewhere) == sorted(name.split("/")[1] for name in FILES if "/" in name)
    assert sorted(os.listdir(out)) == ["prepared", "token_freq.bin"]


def test_a_record_that_is_a_link_owns_nothing_and_stays(out: Path, tmp_path: Path) -> None:
    os.rename(out / clearing.EXTRAS, tmp_path / "record")
    (out / clearing.EXTRAS).symlink_to(tmp_path / "record")
    assert clearing.EXTRAS in clear(out).kept
    assert (out / "token_freq.bin").exists()
    assert os.readlink(out / clearing.EXTRAS) == str(tmp_path / "record")


@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_folder_swapped_meanwhile_is_left_alone(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """``prepared`` is exchanged after it was looked at and before anything is removed."""
    theirs, aside = tmp_path / "theirs", tmp_path / "aside"
    theirs.mkdir()
    if how == "link":
        (theirs / "state.json").write_bytes(FILES["prepared/state.json"])
    sort = clearing._sort

    def swapping(fd: int, *rest: Any) -> Any:
        found = sort(fd, *rest)
        if "state.json" in found.mine:
            os.rename(out / "prepared", aside)
            if how == "link":
                (out / "prepared").symlink_to(theirs)
            else:
                os.rename(theirs, out / "prepared")
        return found

    monkeypatch.setattr(clearing, "_sort", swapping)
    clear(out)
    assert tree(aside) == [], "what was looked at is what is removed"
    assert (out / "prepared").is_dir()
    assert tree(out / "prepared") == (["state.json"] if how == "link" else [])


def test_a_clearing_that_was_cut_short_is_repeated(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str, dir_fd: int) -> None:
        raise PermissionError(13, "no", name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing)
        with pytest.raises(PermissionError):
            clear(out)
    assert tree(out / "prepared") == []
    assert clear(out) == Clearing(1 + 2, 6 + 5, ())
    assert tree(out) == []


@pytest.mark.parametrize("name", ["eagle3.json", "manifest.jsonl", clearing.EXTRAS])
def test_a_pipe_in_place_of_a_record_stops_nobody(out: Path, name: str) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    if name == clearing.EXTRAS:
        assert name in clear(out).kept
        return
    with pytest.raises(NotCleared, match="no plain file"):
        clear(out)
    assert (out / "data_0.pt").exists()
