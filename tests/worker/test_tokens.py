"""Rows of tokenised conversations kept by content: read back equal, rebuilt when wrong, bounded."""

from __future__ import annotations

import fcntl
import os
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent import paths
from eagle3_agent.worker import tokens
from eagle3_agent.worker.conversations import ChatEncoder
from eagle3_agent.worker.dataset import Dataset, Row
from eagle3_agent.worker.limits import Limits
from eagle3_agent.worker.tokens import Cache, Kept
from support import tiny
from support.characters import CharacterTokenizer, chatml

LIMITS = Limits(vocab=500, seq_length=100, max_model_len=100)

ROWS = [
    Kept(0, array("q", [1, 2, 2**31]), array("b", [0, 1, 1]), 7),
    Kept(1, reason="line 2: not JSON: ü\ud800"),
    Kept(2**40, array("q", [5]), array("b", [1])),
]
READ = [ROWS[0], replace(ROWS[1], reason="line 2: not JSON: ü?"), ROWS[2]]


class Source:
    """Rows, and how often each was asked for."""

    def __init__(self, rows: list[Kept]) -> None:
        self.rows, self.taken = rows, 0

    def __iter__(self) -> Iterator[Kept]:
        for row in self.rows:
            self.taken += 1
            yield row


def cache(folder: Path, key: str = "a") -> Cache:
    return Cache(folder, key, lambda: True)


def passed(made: Cache, rows: list[Kept] = ROWS) -> tuple[list[Kept], int]:
    """(what a pass yields, how many rows of the source it took)"""
    source = Source(rows)
    return list(made.rows(iter(source))), source.taken


def test_the_second_pass_reads_what_the_first_one_kept(tmp_path: Path) -> None:
    assert passed(cache(tmp_path)) == (ROWS, 3)
    assert passed(cache(tmp_path)) == (READ, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tokens"]


def test_another_key_is_another_entry(tmp_path: Path) -> None:
    passed(cache(tmp_path))
    assert passed(cache(tmp_path, "b"))[1] == 3


def test_a_pass_that_is_left_keeps_nothing(tmp_path: Path) -> None:
    rows = cache(tmp_path).rows(iter(ROWS))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    assert passed(cache(tmp_path))[1] == 3


def test_data_that_changed_meanwhile_is_not_kept(tmp_path: Path) -> None:
    assert passed(Cache(tmp_path, "a", lambda: False)) == (ROWS, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer"])
def test_an_entry_that_is_not_whole_is_made_again(tmp_path: Path, damage: str) -> None:
    made = cache(tmp_path)
    passed(made)
    good = made.path.read_bytes()
    broken = {
        "flip": good[:20] + bytes([good[20] ^ 1]) + good[21:],
        "cut": good[:-5],
        "empty": b"",
        "longer": good + b"x",
    }
    made.path.write_bytes(broken[damage])
    assert passed(made) == (ROWS, 3)
    assert made.path.read_bytes() == good
    assert passed(made) == (READ, 0)


def test_two_passes_at_once_both_get_all_rows(tmp_path: Path) -> None:
    first, second = (cache(tmp_path).rows(iter(ROWS)) for _ in range(2))
    assert list(zip(first, second)) == [(row, row) for row in ROWS]
    assert list(first) == list(second) == []
    assert [p.name for p in tmp_path.iterdir()] == ["a.tokens"]


def test_a_reader_keeps_its_entry_when_it_is_replaced_or_removed(tmp_path: Path) -> None:
    passed(cache(tmp_path))
    reader = cache(tmp_path).rows(iter(()))
    assert next(reader) == READ[0]
    (tmp_path / "a.tokens").unlink()
    assert list(reader) == READ[1:]


def test_the_oldest_unused_entries_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, key in enumerate("abcd"):
        made = cache(tmp_path, key)
        passed(made)
        os.utime(made.path, (1000 + age, 1000 + age))
    size = (tmp_path / "a.tokens").stat().st_size
    monkeypatch.setattr(tokens, "LIMIT", 3 * size)
    reading = cache(tmp_path, "b").rows(iter(()))
    next(reading)
    os.utime(tmp_path / "b.tokens", (1001, 1001))
    passed(cache(tmp_path, "e"))
    assert {p.stem for p in tmp_path.iterdir()} == {"b", "d", "e"}, "a and c; b is being read"


def test_leftovers_of_a_killed_run_go_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".x.1.partial", tmp_path / ".x.2.partial"
    dead.write_bytes(b"x")
    alive.write_bytes(b"x")
    with alive.open("rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        passed(cache(tmp_path))
    assert not dead.exists()
    assert alive.exists()


def test_what_is_too_large_or_has_no_room_is_passed_on_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_CHUNK", 16)
    for name, value in (("LIMIT", 40), ("SPARE", 2**60)):
        with monkeypatch.context() as patch:
            patch.setattr(tokens, name, value)
            assert passed(cache(tmp_path)) == (ROWS, 3)
            assert list(tmp_path.iterdir()) == []
    missing = cache(tmp_path / "nowhere")
    assert passed(missing) == (ROWS, 3)


# ------------------------------------------------------------------ over real data


class Counting:
    """A chat encoder that is made once and counts."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> ChatEncoder:
        self.made += 1
        return ChatEncoder(CharacterTokenizer(chatml))


def talks(path: Path, *answers: str) -> Path:
    items = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}
        for text in answers
    ]
    return tiny.write_jsonl(path, [*items, b"broken"])


def read(data: Path, model: Path, limits: Limits = LIMITS) -> tuple[list[Row], int]:
    """(rows, how often the encoder was asked for)"""
    encoder = Counting()
    found = Dataset(
        data,
        limits,
        encoder,
        cache=lambda: tokens.find(data, model, limits, trust_remote_code=False),
    )
    return list(found), encoder.made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_conversations_are_tokenised_once(tmp_path: Path, model: Path) -> None:
    data = talks(tmp_path / "d.jsonl", "a", "b")
    rows, made = read(data, model)
    assert made == 2
    assert read(data, model) == (rows, 0)
    assert len(rows) == 3
    (entry,) = (paths.cache_dir() / "tokens").iterdir()
    assert entry.parent.stat().st_mode & 0o777 == 0o700, "conversations are nobody else's"


def test_weights_and_names_do_not_matter_and_content_does(tmp_path: Path, model: Path) -> None:
    data = talks(tmp_path / "d.jsonl", "a", "b")
    read(data, model)
    (model / "model.safetensors").write_bytes(b"other weights")
    assert read(data, model)[1] == 0
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert read(data, model)[1] == 2
    assert read(data, model, replace(LIMITS, seq_length=99))[1] == 2
    assert read(data, model, replace(LIMITS, too_long="skip"))[1] == 2
    talks(data, "a", "c")
    assert read(data, model)[1] == 2


def test_token_ids_are_not_kept(tmp_path: Path, model: Path) -> None:
    data = tiny.write_jsonl(tmp_path / "d.jsonl", [b"broken", {"input_ids": [1]}])
    assert len(read(data, model)[0]) == 2
    assert not (paths.cache_dir() / "tokens").exists()


def test_without_a_folder_for_it_the_rows_are_the_same(tmp_path: Path, model: Path) -> None:
    data = talks(tmp_path / "d.jsonl", "a")
    rows, _ = read(data, model)
    folder = paths.cache_dir() / "tokens"
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()
    folder.write_text("a file")
    assert read(data, model) == (rows, 1)
