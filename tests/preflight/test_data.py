"""The data: verdicts from facts, and real files of lines, whole and broken."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import jsonline
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.data import data_facts, tally
from eagle3_agent.preflight.data import rows as data
from eagle3_agent.preflight.data.data_facts import PROBE, DataFacts
from eagle3_agent.preflight.data.tally import Limits, Tally
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.protocol.values import Profile, Verdict
from eagle3_agent.rowrules import RowError
from support.preflight import gather, profile

CHAT = {
    "messages": [
        {"role": "user", "content": "a" * 40},
        {"role": "assistant", "content": "b" * 40},
    ]
}
SHAREGPT = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}
IDS = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}


def verdict(seen: DataFacts, asked: Profile | None = None, vocab: int | None = 100) -> Verdict:
    facts = known((PROBE, seen), (MODEL, ModelFacts("/m", vocab=vocab)))
    return data.CHECK.decide(facts, asked or profile())


def jsonl_facts(**changes: Any) -> DataFacts:
    return DataFacts(
        "/d", kind="JSONL", size=1000, rows=10, tokens=500, tokens_exact=True,
        tokens_from="counted input_ids", tally=Tally(rows=10, input_ids=10, **changes),
    )  # fmt: skip


# ------------------------------------------------------------------ verdicts


def test_sound_data_passes_with_its_figures() -> None:
    found = verdict(jsonl_facts())
    assert found.status == "pass"
    assert found.saw == "JSONL, 10 samples, 500 tokens (counted input_ids)"


def test_a_part_is_told_as_a_part() -> None:
    seen = replace(
        jsonl_facts(), whole=False, looked_at=2**25, size=20 * 2**30, tokens_exact=False, places=24
    )
    found = verdict(seen)
    assert "about 500 tokens" in found.saw
    assert "read 32.0 MiB of 20.0 GiB: its beginning and 24 places spread evenly" in found.saw


def test_data_that_cannot_be_used_blocks_with_the_reason() -> None:
    found = verdict(DataFacts("/d", problem="does not exist"))
    assert (found.status, found.saw) == ("block", "/d does not exist")


def test_broken_rows_warn_and_the_first_is_named() -> None:
    found = verdict(jsonl_facts(broken=2, broken_at="line 7", broken_why="not JSON: x"))
    assert found.status == "warn"
    assert "2 of 10 rows cannot be used, the first at line 7: not JSON: x" in found.saw


def test_nothing_but_broken_rows_blocks() -> None:
    found = verdict(jsonl_facts(broken=10, broken_at="line 1", broken_why="not JSON"))
    assert found.status == "block"
    assert "none of 10 rows" in found.saw
    assert "input_ids" in found.todo


def test_a_file_of_blank_lines_blocks() -> None:
    assert verdict(DataFacts("/d", kind="JSONL")).status == "block"


def test_an_id_outside_the_vocabulary_warns_and_is_named() -> None:
    found = verdict(jsonl_facts(largest_id=100, largest_id_at="line 3"))
    assert found.status == "warn"
    assert "token id 100 at line 3 is outside the model's vocabulary of 100" in found.saw
    assert verdict(jsonl_facts(largest_id=99)).status == "pass"
    assert verdict(jsonl_facts(largest_id=100), vocab=None).status == "pass"


def test_samples_longer_than_the_model_takes_warn() -> None:
    asked = profile(data_seq_length=4096, model_max_model_len=2048)
    assert verdict(jsonl_facts(longest=3000), asked).status == "warn"
    assert verdict(jsonl_facts(longest=2048), asked).status == "pass"


def test_mostly_cut_samples_warn() -> None:
    found = verdict(jsonl_facts(cut=6, longest=9000))
    assert found.status == "warn"
    assert "longest 9 000" in found.saw
    assert verdict(jsonl_facts(cut=5)).status == "pass"


def test_samples_that_will_be_skipped_warn_from_the_first_one() -> None:
    asked = profile(data_too_long="skip")
    found = verdict(jsonl_facts(cut=1, longest=9000), asked)
    assert found.status == "warn"
    assert "will be skipped" in found.saw
    assert "data.too_long" in found.todo
    assert verdict(jsonl_facts(cut=0), asked).status == "pass"


def test_masks_that_mark_nothing_block_when_all_do_and_warn_when_many_do() -> None:
    found = verdict(jsonl_facts(unlearned=10))
    assert found.status == "block"
    assert "no loss_mask marks a token" in found.saw
    assert "learns nothing" in found.why
    found = verdict(jsonl_facts(unlearned=2))
    assert found.status == "warn"
    assert "2 of 10 rows have a loss_mask that marks no token" in found.saw
    found = verdict(jsonl_facts(unlearned=1))
    assert (found.status, found.saw.endswith("; 1 row with no token to learn")) == ("pass", True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conversations": 10, "input_ids": 0, "asking": 6}, "6 of 10 rows end without an answer"),
        ({"conversations": 10, "input_ids": 0, "hollow": 2}, "2 of 10 rows hold an empty message"),
        ({"conversations": 4}, "4 conversations and 10 rows of input_ids in one file"),
        ({"unmasked": 3}, "3 of 10 rows have no loss_mask: all their tokens are learned"),
    ],
)
def test_what_can_be_captured_and_is_hardly_meant_warns(
    changes: dict[str, Any], words: str
) -> None:
    seen = jsonl_facts()
    found = verdict(replace(seen, tally=replace(seen.tally, **changes)))
    assert found.status == "warn"
    assert words in found.saw


def test_repeated_rows_warn_when_they_are_many() -> None:
    assert verdict(replace(jsonl_facts(), repeated=9)).status == "pass"
    seen = replace(jsonl_facts(), repeated=20)
    found = verdict(replace(seen, tally=replace(seen.tally, rows=100)))
    assert found.status == "warn"
    assert "20 of 100 rows are the same as another row" in found.saw


def test_what_does_no_harm_is_noted() -> None:
    found = verdict(replace(jsonl_facts(unmasked=10), notes=("lines end in CRLF",)))
    assert found.status == "pass"
    assert found.saw.endswith("; lines end in CRLF; no loss_mask: every token is learned")


def test_the_model_is_wanted_and_not_needed() -> None:
    assert data.CHECK.decide(known((PROBE, jsonl_facts())), profile()).status == "pass"
    silent = Facts(silent={"data": "did not answer within 30 s"})
    assert data.CHECK.decide(silent, profile()).status == "block"


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        (CHAT, 20),
        (SHAREGPT, 1),
        (IDS, 3),
        ({"input_ids": [0]}, 1),
        ({"messages": [{"role": "assistant", "content": [{"text": "abcd"}, "efgh"]}]}, 2),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, 1),
    ],
)
def test_usable_rows(row: dict[str, Any], tokens: int) -> None:
    assert tally.look(row).tokens == tokens


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([], "a list"),
        ("x", "a string"),
        (None, "null"),
        (True, "a boolean"),
        (7, "a number"),
        ({}, "keys: "),
        ({"text": "x"}, "'text'"),
        ({"messages": []}, "empty conversation"),
        ({"messages": "x"}, "is a list"),
        ({"messages": [5]}, "message 1 is no object"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role 'wizard'"),
        ({"messages": [{"content": "x"}]}, "role None"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant turn"),
        ({"messages": [{"role": "assistant", "content": 5}]}, "no text"),
        ({"messages": [{"role": "assistant", "content": [{}]}]}, "no text"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": "1 2"}, "no list of integers"),
        ({"input_ids": [1, True]}, "no list of integers"),
        ({"input_ids": [1, -1]}, "negative"),
        ({"input_ids": [1], "loss_mask": 1}, "no list"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "1 entries, input_ids 2"),
    ],
)
def test_rows_that_the_worker_will_skip(row: Any, words: str) -> None:
    with pytest.raises(RowError, match=words):
        tally.look(row)


# ------------------------------------------------------------------ real files


def look(path: Path | str, *, deep: bool = False, **changes: Any) -> tuple[DataFacts, Verdict]:
    asked = profile(data_path=str(path), **changes)
    facts = gather(PROBE, asked, deep=deep)
    return facts.get(PROBE), data.CHECK.decide(facts, asked)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_one_broken_line_is_counted_and_named(tmp_path: Path) -> None:
    seen, found = look(lines(tmp_path / "d.jsonl", CHAT, "", '{"messages": [', IDS, SHAREGPT))
    assert (seen.tally.rows, seen.tally.broken, seen.tally.broken_at) == (4, 1, "line 3")
    assert found.status == "warn"
    assert "line 3: not JSON" in found.saw


def test_tokens_of_ids_are_exact_and_cut_at_seq_length(tmp_path: Path) -> None:
    rows = [{"input_ids": [1] * n} for n in (3, 10, 5)]
    seen, _ = look(lines(tmp_path / "d.jsonl", *rows), data_seq_length=5)
    assert (seen.tokens, seen.tokens_exact, seen.tally.cut, seen.tally.longest) == (13, True, 1, 10)


def test_tokens_of_conversations_are_an_estimate_that_says_so(tmp_path: Path) -> None:
    seen, found = look(lines(tmp_path / "d.jsonl", CHAT, CHAT))
    assert (seen.tokens, seen.tokens_exact) == (40, False)
    assert "about 40 tokens (4 characters a token)" in found.saw


def test_only_the_samples_of_the_run_are_looked_at(tmp_path: Path) -> None:
    seen, found = look(lines(tmp_path / "d.jsonl", IDS, IDS, "{broken"), data_max_samples=2)
    assert (seen.rows, seen.tokens, seen.whole) == (2, 6, True)
    assert found.status == "pass"


def test_a_large_file_is_read_in_part_and_in_whole_when_asked_deep(tmp_path: Path) -> None:
    row = {"input_ids": [7] * 50_000}
    count = 2 * data_facts.QUICK_BYTES // len(json.dumps(row)) + 40
    path = lines(tmp_path / "d.jsonl", *[row] * count)
    quick, _ = look(path, data_seq_length=50_000)
    assert not quick.whole
    assert quick.rows == pytest.approx(count, rel=0.01)
    assert quick.tokens == pytest.approx(count * 50_000, rel=0.01)
    deep, _ = look(path, data_seq_length=50_000, deep=True)
    assert (deep.whole, deep.rows, deep.tokens) == (True, count, count * 50_000)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.jsonl", b"", "is empty (0 bytes)"),
        ("d.jsonl", b"\n \n\n", "only blank lines"),
        ("d.jsonl", b"no json\nat all\n", "none of 2 rows"),
        ("d.jsonl", b"\xff\xfe\x00a", "UTF-16"),
        ("d.jsonl", b"\x80\x81\n", "not UTF-8 at byte 1"),
        ("d.jsonl", b"[" * 100_000 + b"\n", "one JSON array"),
        ("d.jsonl", b'{"a":' * 100_000 + b"\n", "nested too deep"),
        ("d.jsonl", b'{"input_ids": [' + b"9" * 10_000 + b"]}\n", "none of 1 row"),
        ("d.json", b'[{"messages": []}]', "one JSON array"),
        ("d.json", b'\xef\xbb\xbf [{"messages": []}]', "one JSON array"),
        ("d.jsonl", b"\0" * 5000, "begins with zero bytes"),
        ("d.jsonl", '{"a"'.encode("utf-16-le"), "UTF-16"),
        ("d.jsonl", '{"a"'.encode("utf-16-be"), "UTF-16"),
        ("d.jsonl", b"BZh91AY", "bzip2"),
        ("d.jsonl", b"\xfd7zXZ\x00", "xz"),
        ("d.jsonl", gzip.compress(b"{}"), "gzip"),
        ("d.jsonl", b"PAR1 and so on PAR1", "parquet file by its first bytes"),
        ("d.csv", b"a,b\n", "'.csv'"),
        ("d", b"a", "''"),
        ("d.parquet", b"PAR1", "PAR1"),
        ("d.parquet", b"{}" * 20, "does not begin like parquet"),
        ("d.parquet", b"PAR1" + bytes(30) + b"\xff\xff\xff\x7fPAR1", "footer has"),
        ("d.parquet", b"PAR1" + b"\x99" * 30 + b"\x1e\0\0\0PAR1", "cannot be understood"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_data(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = look(path)[1]
    assert found.status == "block"
    assert words in found.saw
    assert found.todo


def test_what_is_no_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jsonl")
    assert "not a regular file" in look(tmp_path / "fifo.jsonl")[1].saw
    assert "not a regular file" in look("/dev/zero")[1].saw
    assert "does not exist" in look(tmp_path / "none.jsonl")[1].saw
    assert "without state.json" in look(tmp_path)[1].saw
    assert "a whole path" in look("data/train.jsonl")[1].saw


def test_a_line_without_end_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    with path.open("wb") as file:
        for _ in range(jsonline.MAX_LINE // 2**20 + 2):
            file.write(b"x" * 2**20)
        file.write(b"\n" + json.dumps(IDS).encode() + b"\n")
    seen, found = look(path, deep=True)
    assert (seen.tally.rows, seen.tally.broken) == (2, 1)
    assert f"line 1: longer than {jsonline.MAX_LINE} bytes" in found.saw


def test_hostile_rows_come_out_printable(tmp_path: Path) -> None:
    seen, found = look(lines(tmp_path / "d.jsonl", {"\x1b[2J\n\u202e": 1}, IDS))
    assert seen.tally.broken == 1
    assert "\x1b" not in found.saw
    assert "\u202e" not in found.saw


def test_marks_and_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([json.dumps(IDS).encode()] * 3) + b"\r\n")
    seen, found = look(path)
    assert (seen.tally.rows, seen.tally.broken) == (3, 0)
    assert found.status == "pass"
    assert "opens with a byte order mark; lines end in CRLF" in found.saw


def test_conversations_are_told_from_ids(tmp_path: Path) -> None:
    ends = {"messages": [*CHAT["messages"], {"role": "user", "content": " "}]}
    seen, found = look(lines(tmp_path / "d.jsonl", ends, CHAT))
    assert (seen.talks, seen.tally.asking, seen.tally.hollow) == (True, 1, 1)
    assert "1 of 2 rows end without an answer" in found.saw
    assert look(lines(tmp_path / "i.jsonl", IDS))[0].talks is False
    assert look(lines(tmp_path / "x.jsonl", "{"))[0].talks is None
    seen, found = look(lines(tmp_path / "m.jsonl", IDS, CHAT, {"input_ids": [1]}))
    assert (seen.talks, seen.tally.unmasked) == (True, 1)
    assert found.status == "warn"


def test_a_mask_counts_within_seq_length(tmp_path: Path) -> None:
    late = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 0, 1]}
    path = lines(tmp_path / "d.jsonl", late)
    assert look(path)[1].status == "pass"
    found = look(path, data_seq_length=3)[1]
    assert found.status == "block"
    assert "no loss_mask marks a token" in found.saw


def test_rows_past_the_models_length_are_counted(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", {"input_ids": [1] * 30}, IDS)
    found = look(path, data_seq_length=40, model_max_model_len=20)[1]
    assert found.status == "warn"
    assert "longer samples are skipped, 1 of those looked at" in found.saw


def test_limits_are_what_the_profile_says() -> None:
    counter = tally.Counter(Limits(seq_length=2, max_samples=1))
    assert not counter.full()
    counter.add("line 1", IDS)
    assert counter.full()
    assert counter.result().exact_tokens == 2
