"""Measurements that are kept: bounded, private, safe for two writers, and forgotten in time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from eagle3_agent.preflight.libraries import remembered


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path))
    return tmp_path / "state" / "measured"


def test_what_was_kept_comes_back_with_its_age() -> None:
    remembered.keep("a", 100.0, {"x": [1, "y"]})
    assert remembered.recall("a", 160.5) == (60.5, {"x": [1, "y"]})
    assert remembered.recall("b", 160.5) is None


def test_a_time_that_cannot_be_and_a_time_long_gone_are_misses() -> None:
    remembered.keep("a", 100.0, 1)
    assert remembered.recall("a", 99.0) is None
    assert remembered.recall("a", 101.0 + remembered.OLDEST) is None


def test_nothing_is_kept_without_a_key_or_beyond_the_size(home: Path) -> None:
    remembered.keep("", 1.0, 1)
    remembered.keep("a", 1.0, "x" * remembered.LARGEST)
    assert not home.exists()
    assert remembered.recall("", 1.0) is None


def test_only_the_newest_stay(home: Path) -> None:
    for number in range(remembered.MOST + 5):
        remembered.keep(f"k{number}", 1.0, number)
        os.utime(home / f"k{number}.json", ns=(number, number))
    remembered.keep("last", 1.0, 0)
    names = {file.name for file in home.iterdir()}
    assert len(names) == remembered.MOST
    assert "last.json" in names
    assert "k0.json" not in names


def test_another_files_body_under_this_name_is_a_miss(home: Path) -> None:
    remembered.keep("a", 1.0, 1)
    os.rename(home / "a.json", home / "b.json")
    assert remembered.recall("b", 2.0) is None


def test_what_is_no_file_is_a_miss(home: Path) -> None:
    home.mkdir(parents=True)
    os.mkfifo(home / "a.json")
    (home / "b.json").symlink_to("/dev/zero")
    (home / "c.json").symlink_to("/nowhere")
    for key in "abc":
        assert remembered.recall(key, 2.0) is None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, home: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    home.parent.mkdir(parents=True)
    home.symlink_to(tmp_path / "elsewhere")
    remembered.keep("a", 1.0, 1)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_writers_and_a_reader_never_see_half_a_file(home: Path) -> None:
    bodies = ["x" * 100_000, "y" * 50_000]
    remembered.keep("a", 1.0, bodies[0])

    def write(body: str) -> None:
        for _ in range(40):
            remembered.keep("a", 1.0, body)

    writers = [threading.Thread(target=write, args=(body,)) for body in bodies]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = remembered.recall("a", 2.0)
        assert found is not None
        assert found[1] in bodies
    for writer in writers:
        writer.join()
    assert [file.name for file in home.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("age", "took", "words"),
    [
        (None, 0.2, "measured now"),
        (None, 14.4, "measured now, in 14 s"),
        (9.0, 0.0, "measured 9 s ago, nothing changed since"),
        (7200.0, 0.0, "measured 2 h ago, nothing changed since"),
    ],
)
def test_when_it_was_measured_in_words(age: float | None, took: float, words: str) -> None:
    assert remembered.when(age, took) == words
