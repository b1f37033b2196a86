"""Locks removed and folders moved aside: real files, links swapped in, names taken."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.preflight.actions import files, offers
from eagle3_agent.preflight.actions.offers import FileInfo
from eagle3_agent.preflight.actions.refused import NotTaken
from eagle3_agent.preflight.running import lock_facts
from eagle3_agent.protocol.values import Action
from support.preflight import until
from support.real_processes import Start, starting

#: 2026-11-30 15:45:00 in the zone that the tests' host has.
NOW = time.mktime((2026, 11, 30, 15, 45, 0, 0, 0, -1))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


# ------------------------------------------------------------------ files


def info(path: Path) -> FileInfo:
    found = path.lstat()
    return FileInfo(found.st_dev, found.st_ino, found.st_mtime)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "out"
    folder.mkdir()
    (folder / "data_0.pt").write_bytes(b"x")
    return folder


def test_a_folder_is_renamed_whole_and_nothing_else(out: Path) -> None:
    action = offers.move_aside(str(out), info(out), NOW)
    before = info(out)
    assert files.move_aside(action) == (f"moved {out}", f"to {action.aside}")
    assert not out.exists()
    moved = Path(action.aside)
    assert (moved / "data_0.pt").read_bytes() == b"x"
    assert info(moved) == before


@pytest.mark.parametrize("flag", [1, 1 << 20])
def test_what_stands_at_the_new_name_is_never_replaced(
    out: Path, monkeypatch: pytest.MonkeyPatch, flag: int
) -> None:
    monkeypatch.setattr(files, "_RENAME_NOREPLACE", flag)  # the second: as a mount without it
    action = offers.move_aside(str(out), info(out), NOW)
    Path(action.aside).mkdir()
    with pytest.raises(NotTaken, match="not moved"):
        files.move_aside(action)
    assert (out / "data_0.pt").exists()
    assert list(Path(action.aside).iterdir()) == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_mount_without_an_exclusive_rename_moves_all_the_same(
    out: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    monkeypatch.setattr(files, "_RENAME_NOREPLACE", 1 << 20)
    path = out if is_folder else out / "data_0.pt"
    action = offers.move_aside(str(path), info(path), NOW)
    assert files.move_aside(action)[0] == f"moved {path}"
    assert Path(action.aside).exists()
    assert not path.exists()


def test_a_link_swapped_in_is_not_followed(out: Path, tmp_path: Path) -> None:
    action = offers.move_aside(str(out), info(out), NOW)
    real = out.rename(tmp_path / "elsewhere")
    out.symlink_to(real)
    with pytest.raises(NotTaken, match="a link now"):
        files.move_aside(action)
    assert out.is_symlink()
    assert (real / "data_0.pt").exists()


def test_a_link_on_the_way_is_not_followed(out: Path) -> None:
    linked = out.parent / "link"
    linked.symlink_to(out)
    inner = linked / "data_0.pt"
    with pytest.raises(NotTaken, match="stands in its way"):
        files.move_aside(offers.move_aside(str(inner), info(inner), NOW))
    assert inner.exists()


def test_a_folder_made_anew_under_the_same_name_is_left(out: Path) -> None:
    action = offers.move_aside(str(out), info(out), NOW)
    out.rename(out.with_name("old"))
    out.mkdir()
    with pytest.raises(NotTaken, match="made anew"):
        files.move_aside(action)
    assert out.is_dir()


def test_a_target_in_another_folder_is_refused(out: Path) -> None:
    action = offers.move_aside(str(out), info(out), NOW)
    for aside in ("/tmp/x", f"{out}/inside", f"{out.parent}/", "relative"):
        with pytest.raises(NotTaken):
            files.move_aside(replace(action, aside=aside))
    assert out.is_dir()


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b", "/proc/1/root/.", ""])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(NotTaken):
        files.move_aside(Action("x", "move-aside", "", (), path=path, aside=f"{path}.aside"))


def test_a_lock_that_nobody_uses_is_removed(out: Path) -> None:
    lock = out / "lock"
    lock.touch()
    (line,) = files.remove_lock(offers.remove_lock(str(lock), info(lock)))
    assert line.startswith(f"removed {lock}")
    assert not lock.exists()
    assert (out / "data_0.pt").exists()


@pytest.mark.parametrize("locked", [True, False])
def test_a_lock_that_somebody_uses_stays(out: Path, start: Start, locked: bool) -> None:
    lock, ready = out / "lock", out / "ready"
    lock.touch()
    code = (
        "import fcntl, os, signal, sys; fd = os.open(sys.argv[1], os.O_RDONLY); "
        "sys.argv[3] == 'True' and fcntl.flock(fd, fcntl.LOCK_EX); "
        "open(sys.argv[2], 'w').close(); signal.pause()"
    )
    start([sys.executable, "-c", code, str(lock), str(ready), str(locked)])
    until(ready.exists)
    with pytest.raises(NotTaken, match="in use"):
        files.remove_lock(offers.remove_lock(str(lock), info(lock)))
    assert lock.exists()


def test_a_lock_held_where_open_files_cannot_be_seen_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = out / "lock"
    monkeypatch.setattr(lock_facts, "opener", lambda *_: 0)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotTaken, match="is locked"):
            files.remove_lock(offers.remove_lock(str(lock), info(lock)))
    assert lock.exists()


def test_a_lock_that_became_a_link_or_another_file_stays(out: Path) -> None:
    lock, target = out / "lock", out / "data_0.pt"
    lock.touch()
    action = offers.remove_lock(str(lock), info(lock))
    lock.rename(out / "kept")
    with pytest.raises(NotTaken, match="gone"):
        files.remove_lock(action)
    lock.symlink_to(target)
    with pytest.raises(NotTaken, match="link"):
        files.remove_lock(action)
    lock.unlink()
    lock.touch()
    with pytest.raises(NotTaken, match="anew"):
        files.remove_lock(action)
    assert lock.exists()
    with pytest.raises(NotTaken, match="no plain file"):
        files.remove_lock(offers.remove_lock(str(out), info(out)))
