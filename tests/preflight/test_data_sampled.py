"""Data too large to be read whole: where it is looked at, what is found there, what is said."""

from __future__ import annotations

import io
import json
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Ask, known
from eagle3_agent.preflight.data import arrow, data_facts, jsonl, parquet, values
from eagle3_agent.preflight.data import rows as data
from eagle3_agent.preflight.data.arrow import Batch, Lists
from eagle3_agent.preflight.data.data_facts import PROBE, DataFacts
from eagle3_agent.preflight.data.tally import Limits
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile

SAVED = Path(__file__).with_name("data")
GOOD = (json.dumps({"input_ids": [5] * 40, "loss_mask": [1] * 40}) + "\n").encode()
ANY = Limits(2048, None)


def look(path: Path, **changes: Any) -> tuple[DataFacts, Verdict]:
    asked = profile(data_path=str(path), **changes)
    facts = gather(PROBE, asked)
    return facts.get(PROBE), data.CHECK.decide(facts, asked)


def sparse(path: Path, size: int, at: dict[int, bytes]) -> Path:
    """A file of holes with a few written places; takes no room on the disk."""
    with path.open("wb") as file:
        for position, content in at.items():
            file.seek(position)
            file.write(content)
        file.truncate(size)
    return path


def test_20_gib_are_looked_at_in_a_moment_and_the_sample_is_said(tmp_path: Path) -> None:
    size = 20 * 2**30
    head = GOOD * (data_facts.QUICK_BYTES // 4 // len(GOOD) + 1)
    middle = b"\n" + b'{"broken": \n' + GOOD * 3000
    begin, span = len(head), size - len(head)
    window = data_facts.QUICK_BYTES * 3 // 4 // jsonl.PLACES
    tenth = begin + (span - window) * 10 // (jsonl.PLACES - 1) + 100
    path = sparse(tmp_path / "d.jsonl", size, {0: head, tenth: middle})
    began = time.process_time()
    seen = PROBE.collect(Ask(profile(data_path=str(path))))
    assert time.process_time() - began < 1.5
    assert (seen.size, seen.whole, seen.places) == (size, False, jsonl.PLACES)
    assert seen.looked_at < 64 * 2**20
    assert seen.tally.broken == 1
    assert seen.tally.broken_at.startswith("byte ")
    found = look(path)[1]
    assert found.status == "warn"
    assert "of 20.0 GiB: its beginning and 24 places spread evenly to its end" in found.saw
    assert "cannot be used, the first at byte" in found.saw


def test_the_end_is_looked_at_where_a_copy_was_cut_off(tmp_path: Path) -> None:
    count = 3 * data_facts.QUICK_BYTES // len(GOOD)
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD * count + GOOD[:30])
    seen, found = look(path)
    assert not seen.whole
    assert seen.tally.broken == 1
    assert seen.rows == pytest.approx(count, rel=0.01)
    assert seen.tokens == pytest.approx(count * 40, rel=0.01)
    assert f"byte {count * len(GOOD)}" in found.saw


def test_only_the_part_that_the_run_takes_is_sampled(tmp_path: Path) -> None:
    taken = 2 * data_facts.QUICK_BYTES // len(GOOD)
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD * taken + b"broken\n" * 1000)
    seen, _ = look(path, data_max_samples=taken)
    assert (seen.rows, seen.tally.broken, seen.whole) == (taken, 0, False)
    few = look(path, data_max_samples=100)[0]
    assert (few.rows, few.whole, few.places) == (100, True, 0)


def test_lines_that_grow_longer_than_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run's last row lies is guessed by the lines before: wrongly here, and no harm."""
    monkeypatch.setattr(data_facts, "QUICK_BYTES", 4000)
    short, long = b'{"input_ids": [1]}\n', b'{"input_ids": [1' + b", 1" * 200 + b"]}\n"
    for before in (60, 99, 104):
        path = tmp_path / "d.jsonl"
        path.write_bytes(short * before + long * 400)
        for most in range(55, 120):
            seen = PROBE.collect(Ask(profile(data_path=str(path), data_max_samples=most)))
            assert seen.tally.broken == 0
            assert seen.rows == most


def test_lines_of_all_lengths_have_the_same_chance(tmp_path: Path) -> None:
    """A line is taken where it begins: long ones are not met more often for their length."""
    long = (json.dumps({"input_ids": [5] * 4000}) + "\n").encode()
    count = 4 * data_facts.QUICK_BYTES // (len(long) + 3 * len(GOOD))
    path = tmp_path / "d.jsonl"
    path.write_bytes((long + GOOD * 3) * count)
    seen, _ = look(path, data_seq_length=4000)
    assert seen.tally.cut == 0
    assert seen.tokens == pytest.approx(count * (4000 + 120), rel=0.02)
    assert seen.rows == pytest.approx(count * 4, rel=0.02)


def test_a_line_begun_before_a_place_is_passed_over() -> None:
    for at, rows in ((0, 3), (1, 2), (len(GOOD), 2), (len(GOOD) + 1, 1)):
        reader = jsonl._Reader(io.BytesIO(b"\n" + GOOD * 3), ANY)
        reader.place(1 + at, 10 * len(GOOD))
        assert reader.part(whole=False).tally.rows == rows


def test_repeated_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD * 30 + b'{"input_ids": [1]}\n')
    seen, found = look(path)
    assert seen.repeated == 29
    assert "29 of 31 rows are the same as another row" in found.saw


# ------------------------------------------------------------------ a saved dataset's values


def batch(
    path: Path, ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]] | None = None
) -> Batch:
    """One record batch's buffers, written one after the other."""
    lists: dict[str, Lists] = {}
    content = bytearray(path.read_bytes() if path.exists() else b"")

    def put(rows: Sequence[Sequence[int]], code: str) -> Lists:
        offsets = [0]
        for row in rows:
            offsets.append(offsets[-1] + len(row))
        buffers = []
        flat = array(code, [v for row in rows for v in row])
        for part in (struct.pack(f"<{len(offsets)}i", *offsets), flat.tobytes()):
            buffers.append((len(content), len(part)))
            content.extend(part)
        return Lists(False, buffers[0], buffers[1], 8 * flat.itemsize, True)

    lists["input_ids"] = put(ids, "q")
    if masks is not None:
        lists["loss_mask"] = put(masks, "b")
    path.write_bytes(content)
    return Batch(len(ids), lists)


def seen_in(path: Path, made: list[Batch], budget: int | None = None, **more: Any) -> values.Look:
    limits = Limits(**{"seq_length": 2048, "max_samples": None, **more})
    found, why = values.look([(str(path), made)], budget, limits, masked=True)
    assert found is not None, why
    return found


def test_rows_of_a_dataset_are_judged_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    made = [
        batch(path, [[1, 2, 3], [], [9, -4]], [[0, 0, 1], [], [1, 1]]),
        batch(path, [[7] * 5, [1, 2]], [[0] * 5, [1]]),
    ]
    found = seen_in(path, made, seq_length=4)
    tally = found.tally
    assert (tally.rows, tally.broken, tally.input_ids) == (5, 3, 2)
    assert (tally.broken_at, tally.broken_why) == ("row 2", "empty: no token")
    assert (tally.largest_id, tally.largest_id_at) == (7, "row 4")
    assert (tally.longest, tally.cut, tally.unlearned, tally.exact_tokens) == (5, 1, 1, 7)
    assert found.whole


def test_the_budget_is_spread_over_the_batches(tmp_path: Path) -> None:
    path = tmp_path / "x"
    made = [batch(path, [[i] * 10] * 50) for i in range(20)]
    found = seen_in(path, made, budget=20 * 10 * 8 * 5)
    assert not found.whole
    assert found.tally.rows == 20 * 5
    assert found.tally.largest_id == 19
    many = [batch(path, [[i]]) for i in range(200)]
    assert seen_in(path, many, budget=10**6).tally.rows == 64
    assert seen_in(path, many).tally.rows == 200


def test_only_the_rows_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "x"
    made = [batch(path, [[1], [2]]), batch(path, [[3], [4]]), batch(path, [[5]])]
    found = seen_in(path, made, max_samples=3)
    assert (found.tally.rows, found.tally.largest_id) == (3, 3)


@pytest.mark.parametrize(
    "lists",
    [
        Lists(False, (0, 4), (0, 8), 64, True),
        Lists(False, (0, 2**60), (0, 8), 64, True),
        Lists(False, (-8, 8), (0, 8), 64, True),
        Lists(True, (0, 16), (0, 8), 64, True),
        Lists(False, (0, 8), (0, 8), 64, True),
    ],
)
def test_buffers_that_lie_are_told(tmp_path: Path, lists: Lists) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<2i", 0, 2**30))
    made = [Batch(1, {"input_ids": lists})]
    found, why = values.look([(str(path), made)], None, ANY, masked=False)
    assert found is None
    assert why


def test_lists_that_are_not_read_here_are_told(tmp_path: Path) -> None:
    found, why = values.look([("/x", [Batch(3)])], None, ANY, masked=False)
    assert found is None
    assert "compressed or nested" in why
    seen = DataFacts("/d", kind="Arrow dataset", rows=3, tokens=9, unseen=why, talks=False)
    verdict = data.CHECK.judge(known((PROBE, seen)), profile())
    assert verdict.status == "pass"
    assert "its rows were not looked at: its lists are compressed" in verdict.saw


def test_the_headers_of_a_real_dataset_lead_to_its_values() -> None:
    table = arrow.read(str(SAVED / "arrow_ids" / "data-00000-of-00001.arrow"))
    lists = table.batches[0].lists
    assert (lists["input_ids"].bits, set(lists)) == (32, {"input_ids", "loss_mask"})
    assert list(_lengths(SAVED / "arrow_ids" / "data-00000-of-00001.arrow", table)) == [3, 5, 0, 8]


def _lengths(path: Path, table: arrow.Table) -> Iterator[int]:
    position, length = table.batches[0].lists["input_ids"].offsets
    raw = path.read_bytes()[position : position + length]
    offsets = struct.unpack(f"<{len(raw) // 4}i", raw)[: table.rows + 1]
    yield from (b - a for a, b in pairwise(offsets))


# ------------------------------------------------------------------ parquet


def test_a_parquet_footer_tells_the_largest_id() -> None:
    assert parquet.read(str(SAVED / "ids.parquet")).ranges["input_ids"][1] > 0
    seen, found = look(SAVED / "ids.parquet")
    assert seen.tally.largest_id > 0
    assert "parquet is not unpacked here" in found.saw


def test_a_mask_of_zeros_in_parquet_blocks() -> None:
    table = parquet.Table(4, ("input_ids",), ranges={"input_ids": (0, 9), "loss_mask": (0, 0)})
    tally = data_facts._from_ranges(table)
    seen = DataFacts("/d", kind="parquet", rows=4, tokens=9, tally=tally)
    assert data.CHECK.judge(known((PROBE, seen)), profile()).status == "block"
    low = parquet.Table(4, ("input_ids",), ranges={"input_ids": (-1, 9)})
    seen = DataFacts("/d", kind="parquet", rows=4, tally=data_facts._from_ranges(low))
    found = data.CHECK.judge(known((PROBE, seen)), profile())
    assert found.status == "warn"
    assert "some row cannot be used: token id -1 is negative" in found.saw
