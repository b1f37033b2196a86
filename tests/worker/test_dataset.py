"""Rows to samples, without any library: numbering, truncation, what is refused as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import jsonline
from eagle3_agent.worker import plan, rows
from eagle3_agent.worker.conversations import ChatEncoder
from eagle3_agent.worker.dataset import Bad, Dataset, Usable
from eagle3_agent.worker.errors import DataError
from eagle3_agent.worker.limits import Limits
from eagle3_agent.worker.manifest import digest
from support import tiny
from support.characters import CharacterTokenizer, chatml

LIMITS = Limits(vocab=500, seq_length=100, max_model_len=100)


def encoder() -> ChatEncoder:
    return ChatEncoder(CharacterTokenizer(chatml))


def test_truncation_cuts_mask_and_ids_alike_and_counts(tmp_path: Path) -> None:
    path = tiny.write_jsonl(
        tmp_path / "d.jsonl", [{"input_ids": list(range(9)), "loss_mask": [0, 1, 1] * 3}]
    )
    (row,) = Dataset(path, Limits(500, 4, 100), encoder)
    assert isinstance(row, Usable)
    assert list(row.sample.input_ids) == [0, 1, 2, 3]
    assert list(row.sample.loss_mask) == [0, 1, 1, 0]
    assert row.dropped == 5


def test_rows_longer_than_the_model_can_hold_are_bad(tmp_path: Path) -> None:
    path = tiny.write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [1] * 60}])
    assert list(Dataset(path, Limits(500, 100, 50), encoder)) == [
        Bad(0, "line 1: 60 tokens, model.max_model_len is 50")
    ]


def talk(question: str, answer: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def test_too_long_rows_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    items = [{"input_ids": [1] * 5}, {"input_ids": [1] * 4}, talk("?", "x" * 80)]
    path = tiny.write_jsonl(tmp_path / "d.jsonl", items)
    long, fits, talked = Dataset(path, Limits(500, 4, 100, too_long="skip"), encoder)
    assert long == Bad(
        0, "line 1: 5 tokens, more than data.seq_length = 4, and data.too_long = 'skip'"
    )
    assert isinstance(fits, Usable)
    assert isinstance(talked, Bad)


def test_a_conversation_without_an_answer_in_what_is_left_is_bad(tmp_path: Path) -> None:
    items = [talk("x" * 50, "b"), {"input_ids": [1] * 9, "loss_mask": [0] * 8 + [1]}]
    path = tiny.write_jsonl(tmp_path / "d.jsonl", items)
    talked, given = Dataset(path, Limits(500, 8, 100), encoder)
    assert talked == Bad(
        0, "line 1: no token of an assistant turn is left within data.seq_length = 8"
    )
    assert isinstance(given, Usable), "a mask that came with the data is the user's"
    assert given.dropped == 1


def test_tools_may_be_text(tmp_path: Path) -> None:
    seen: list[Any] = []

    def template(messages: list[dict[str, Any]], prompt: bool) -> str:
        seen.append([m.get("tool_calls") for m in messages])
        return chatml(messages, prompt)

    asked = talk("?", "a")
    asked["messages"][1]["tool_calls"] = '[{"name": "f"}]'
    items = [asked, talk("?", "a", tools="[nonsense"), talk("?", "a", tools='{"x": 1}')]
    path = tiny.write_jsonl(tmp_path / "d.jsonl", items)
    good, broken, other = Dataset(path, LIMITS, lambda: ChatEncoder(CharacterTokenizer(template)))
    assert isinstance(good, Usable)
    assert seen[0] == [None, [{"name": "f"}]]
    assert broken == Bad(1, "line 2: tools is text that is no JSON")
    assert other == Bad(2, "line 3: tools is no list")


def test_prepared_rows_with_pictures_are_bad(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}]
    items = [
        {"input_ids": [1], "messages": [{"role": "user", "content": parts}]},
        {"input_ids": [1], "messages": [{"role": "user", "content": parts[:1]}]},
    ]
    path = tiny.write_jsonl(tmp_path / "d.jsonl", items)
    pictured, text = Dataset(path, LIMITS, encoder)
    assert pictured == Bad(0, "line 1: holds a part of type image_url, and only text is captured")
    assert isinstance(text, Usable)


def test_numbers_are_places_in_the_data_and_max_samples_counts_bad_rows(tmp_path: Path) -> None:
    items = [{"input_ids": [1]}, b"nonsense", b"   ", {"input_ids": [2]}, {"input_ids": [3]}]
    path = tiny.write_jsonl(tmp_path / "d.jsonl", items)
    found = list(Dataset(path, Limits(500, 100, 100, max_samples=3), encoder))
    indexes = [row.index if isinstance(row, Bad) else row.sample.index for row in found]
    assert indexes == [0, 1, 2]
    assert [isinstance(row, Bad) for row in found] == [False, True, False]


def test_a_byte_order_mark_and_crlf_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input_ids": [1]}\r\n\r\n{"input_ids": [2]}')
    found = [row for row in Dataset(path, LIMITS, encoder) if isinstance(row, Usable)]
    assert [list(row.sample.input_ids) for row in found] == [[1], [2]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b'{"input_ids": [' + b"9" * 5000 + b"]}", "not JSON: "),
        (b'{"input_ids": [true]}', "input_ids is no list of integers"),
        (b'{"input_ids": [1.0]}', "input_ids is no list of integers"),
        (b'{"input_ids": [123456789012345678901]}', "token id 123456789012345678901 is outside"),
        (b'"text"', "not an object"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "the first message is the"),
    ],
)
def test_odd_lines_are_bad_rows(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tiny.write_jsonl(tmp_path / "d.jsonl", [line, {"input_ids": [1]}])
    bad, good = Dataset(path, LIMITS, encoder)
    assert isinstance(bad, Bad)
    assert bad.reason.startswith(f"line 1: {reason}")
    assert isinstance(good, Usable)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("d.csv", "a,b", "data.path must be a .jsonl or .parquet file or a dataset's folder"),
        ("missing.jsonl", None, "cannot be read: No such file or directory"),
        ("folder/other.txt", "x", "has no state.json"),
        ("folder/state.json", "{", "state.json is broken"),
        ("folder/dataset_dict.json", "{}", "holds the splits"),
        ("folder/state.json", '{"_data_files": [{"filename": "../x"}]}', "outside its folder"),
        (
            "folder/state.json",
            '{"_data_files": [{"filename": "x"}], "_indices_data_files": [{"filename": "i"}]}',
            "flatten_indices",
        ),
    ],
)
def test_data_that_is_none_is_refused_as_a_whole(
    tmp_path: Path, name: str, content: str | None, text: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    path = tmp_path / "folder" if name.startswith("folder") else file
    with pytest.raises(DataError) as caught:
        rows.fingerprint(path) if path.is_dir() else list(Dataset(path, LIMITS, encoder))
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_fingerprint_is_the_content(tmp_path: Path) -> None:
    path = tiny.write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [1]}])
    before = rows.fingerprint(path)
    assert rows.fingerprint(path) == before
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    assert rows.fingerprint(path) != before


def test_a_line_past_the_limit_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    with path.open("wb") as file:
        file.write(b'{"input_ids": [1]}\n{"input_ids": [')
        file.write(b"1, " * (jsonline.MAX_LINE // 3) + b"1]}\n")
        file.write(b'{"input_ids": [2]}\n')
    first, second, third = Dataset(path, LIMITS, encoder)
    assert second == Bad(1, f"line 2: longer than {jsonline.MAX_LINE} bytes")
    assert isinstance(first, Usable)
    assert isinstance(third, Usable)
    assert (third.sample.index, list(third.sample.input_ids)) == (2, [2])


def test_digests_tell_ids_from_each_other() -> None:
    assert digest([1, 2]) != digest([2, 1])
    assert digest([1, 2]) == digest((1, 2))
    assert digest([258]) != digest([2, 1])


def test_a_plan_without_a_usable_row_names_the_first_reason(tmp_path: Path) -> None:
    path = tiny.write_jsonl(tmp_path / "d.jsonl", [b"x", b"y"])
    with pytest.raises(DataError, match=r"none of the 2 rows of .* can be used; line 1: not JSON"):
        plan.make(path, Dataset(path, LIMITS, encoder), {})
