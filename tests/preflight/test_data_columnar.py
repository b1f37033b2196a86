"""Saved datasets and parquet files: counted from their headers, whole and damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.data import arrow, parquet
from eagle3_agent.preflight.data import rows as data
from eagle3_agent.preflight.data.data_facts import PROBE, DataFacts
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile

#: Written by datasets 5.0.1 (save_to_disk) and pyarrow 26: 4 rows of 3, 5, 0 and 8 token ids
#: with loss_mask; 3 conversations of 2 messages.
SAVED = Path(__file__).with_name("data")


def look(path: Path, **changes: Any) -> tuple[DataFacts, Verdict]:
    asked = profile(data_path=str(path), **changes)
    facts = gather(PROBE, asked)
    return facts.get(PROBE), data.CHECK.decide(facts, asked)


def test_a_saved_dataset_is_counted_from_its_headers() -> None:
    seen, found = look(SAVED / "arrow_ids")
    assert (seen.kind, seen.rows, seen.tokens, seen.whole) == ("Arrow dataset", 4, 16, True)
    assert (seen.talks, seen.masked, seen.tally.longest) == (False, True, 8)
    assert found.status == "warn"
    assert "1 of 4 rows cannot be used, the first at row 3: empty: no token" in found.saw
    assert look(SAVED / "arrow_ids", data_max_samples=2)[0].tokens == 8


def test_a_parquet_file_is_counted_from_its_footer() -> None:
    seen, _ = look(SAVED / "ids.parquet")
    assert (seen.kind, seen.rows, seen.tokens) == ("parquet", 4, 17)  # an empty list counts as one
    chat, _ = look(SAVED / "chat.parquet")
    assert chat.rows == 3
    assert chat.tokens is not None
    assert "4 bytes of the columns a token" in chat.tokens_from


def test_columns_and_list_lengths() -> None:
    table = arrow.read(str(SAVED / "chat.arrow"))
    assert (table.rows, table.columns, table.values) == (3, ("id", "messages"), {"messages": 6})
    assert parquet.read(str(SAVED / "chat.parquet")).columns == ("id", "messages")


def saved(tmp_path: Path, state: Any = None) -> Path:
    folder = tmp_path / "saved"
    shutil.copytree(SAVED / "arrow_ids", folder)
    if state is not None:
        (folder / "state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    return folder


def test_a_saved_dataset_that_is_cut_off(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "data-00000-of-00001.arrow"
    os.truncate(file, file.stat().st_size - 40)
    found = look(folder)[1]
    assert found.status == "block"
    assert "cut off" in found.saw
    file.unlink()
    assert "No such file" in look(folder)[1].saw


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "cannot be understood"),
        ([], "cannot be understood"),
        ({"_data_files": [{}]}, "cannot be understood"),
        ({"_data_files": [{"filename": "../../etc/passwd"}]}, "outside it"),
        ({"_data_files": []}, "the columns none"),
        ({"_data_files": [], "_indices_files": ["x"]}, "an index of rows"),
    ],
)
def test_a_saved_dataset_with_a_wrong_state(tmp_path: Path, state: Any, words: str) -> None:
    found = look(saved(tmp_path, state))[1]
    assert found.status == "block"
    assert words in found.saw


def test_a_folder_of_splits_says_which_there_are(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert "the splits test, train" in look(tmp_path)[1].saw


@pytest.mark.parametrize("name", ["arrow_ids/data-00000-of-00001.arrow", "ids.parquet"])
def test_no_damage_to_a_columnar_file_is_more_than_a_bad_file(tmp_path: Path, name: str) -> None:
    whole = (SAVED / name).read_bytes()
    chance = random.Random(7)  # noqa: S311
    path = tmp_path / "x"
    read = parquet.read if name.endswith("parquet") else arrow.read
    for _ in range(1500):
        damaged = bytearray(whole[: chance.randrange(len(whole)) or None])
        for _ in range(chance.randrange(6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read(str(path))
        except (arrow.BadFile, parquet.BadFile):
            pass
