"""Host text made safe, numbers as people read them, log lines kept in bounds, ETAs."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3_agent.protocol.events import Event, Load, Note, Plan, Progress, Stage
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import Samples, StageTime
from eagle3_console import formats
from eagle3_console.eta import Eta, Past, estimate, overdue, shard_pace
from eagle3_console.hosttext import clean, clean_lines, crop, crop_left, fit
from eagle3_console.logbuffer import LONGEST, LineBuffer, Search
from eagle3_console.widgets.runlist import done_of
from support import scenes

# ------------------------------------------------------------------------- host text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never closed", ""),
        ("a\x1b", "a␛"),
        ("bell\x07", "bell␇"),
        ("a\tb", "a       b"),
        ("two\nlines", "two␊lines"),
        ("nul\x00", "nul␀"),
        ("\u202eright to left\u202c", "right to left"),
        ("zero\u200bwidth", "zerowidth"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("c1 \x9b31mcsi", "c1 csi"),
        ("[/model] [bold]x", "[/model] [bold]x"),
        ("日本語", "日本語"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text())
def test_clean_text_can_be_printed_and_is_one_line(text: str) -> None:
    shown = clean(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    for char in shown:
        assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(st.text(), st.integers(0, 30))
def test_cropping_never_takes_more_than_the_width(text: str, width: int) -> None:
    shown = clean(text)
    assert cell_len(crop(shown, width)) <= width
    assert cell_len(crop_left(shown, width)) <= width
    assert cell_len(fit(shown, width)) == width


def test_cropping_says_so() -> None:
    assert crop("abcdef", 4) == "abc…"
    assert crop_left("/a/long/path", 6) == "…/path"
    assert fit("7", 3, right=True) == "  7"


def test_a_block_of_text_is_bounded() -> None:
    assert clean_lines("a\r\nb\n\n") == ["a", "b"]
    assert clean_lines("x\n" * 50, limit=10)[-1] == "… 40 more lines"


# ------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (formats.count(None), "-"),
        (formats.count(12480), "12 480"),
        (formats.count(10**40), ">10^15"),
        (formats.gib(None), "-"),
        (formats.gib(int(71.2 * 1024**3)), "71.2"),
        (formats.size(None), "-"),
        (formats.size(0), "0 B"),
        (formats.size(29_360_128), "28.0 MiB"),
        (formats.size(10**30), ">10^5 TiB"),
        (formats.percent(None), "-"),
        (formats.rate(None), "- tok/s"),
        (formats.rate(2283.4), "2 283 tok/s"),
        (formats.rate(1.26), "1.3 tok/s"),
        (formats.duration(None), "-"),
        (formats.duration(2.4), "2 s"),
        (formats.duration(41), "0:41"),
        (formats.duration(1085), "18:05"),
        (formats.duration(12005), "3:20:05"),
        (formats.duration(180000), "2 d 02:00"),
        (formats.duration(1e300), ">10 years"),
        (formats.duration(float("nan")), "-"),
        (formats.clock(None), "-"),
        (formats.clock(1e300), "-"),
        (formats.ago(59), "just now"),
        (formats.ago(1871), "31 min ago"),
    ],
)
def test_formats(got: str, wanted: str) -> None:
    assert got == wanted


# ------------------------------------------------------------------------- the log


def test_lines_join_over_pieces() -> None:
    buffer = LineBuffer()
    for piece in (b"fir", b"st\nsec", b"ond\nth", b"ird"):
        buffer.add(piece)
    assert [buffer.text(i) for i in range(buffer.end)] == ["first", "second", "third"]


def test_a_progress_bar_keeps_its_newest_text() -> None:
    buffer = LineBuffer()
    buffer.add(b"start\n 10%|#   \r 20%|##  \r")
    assert buffer.text(1).strip() == "20%|##"
    buffer.add(b" 30%|### ")
    assert buffer.text(1).strip() == "30%|###"
    buffer.add(b"\r100%|####\nnext\n")
    assert [buffer.text(i).strip() for i in range(3)] == ["start", "100%|####", "next"]


def test_windows_line_ends_are_line_ends() -> None:
    buffer = LineBuffer()
    buffer.add(b"one\r\ntwo\r")
    buffer.add(b"\nthree")
    assert [buffer.text(i) for i in range(3)] == ["one", "two", "three"]


def test_a_huge_line_is_broken_and_stays_readable() -> None:
    buffer = LineBuffer()
    for _ in range(5):
        buffer.add(b"x" * 1024 * 1024)
    buffer.add(b"\nafter\n")
    lines = [buffer.raw(i) for i in range(buffer.end)]
    assert lines[-1] == b"after"
    assert b"".join(lines[:-1]) == b"x" * 5 * 1024 * 1024
    assert max(map(len, lines)) <= LONGEST
    assert buffer.text(0).endswith("bytes)")


def test_memory_is_bounded_and_what_was_dropped_is_counted() -> None:
    buffer = LineBuffer(budget=100_000)
    for number in range(20_000):
        buffer.add(b"line %d\n" % number)
    assert buffer.first > 15_000
    assert buffer.end == 20_000
    assert buffer.text(buffer.end - 1) == "line 19999"
    assert buffer.text(buffer.first) == f"line {buffer.first}"
    assert buffer.raw(0) == b""


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_how_the_bytes_are_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    whole, pieces = LineBuffer(), LineBuffer()
    whole.add(data)
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for start, end in itertools.pairwise(edges):
        pieces.add(data[start:end])
    assert [whole.text(i) for i in range(whole.end)] == [pieces.text(i) for i in range(pieces.end)]


def test_search_takes_a_regular_expression_or_plain_text() -> None:
    buffer = LineBuffer()
    buffer.add(b"alpha\nbeta [x\ngamma\n")
    assert buffer.find(Search.of("A.PHA").data, 0, 3, 1) == 0
    assert buffer.find(Search.of("[x").data, 0, 3, 1) == 1
    assert buffer.find(Search.of("a$").data, 2, -1, -1) == 2
    assert buffer.find(Search.of("delta").data, 0, 3, 1) is None


# ------------------------------------------------------------------------- ETA


def standing(*events: Event) -> Standing:
    made = Standing()
    for event in events:
        made = fold(made, event)
    return made


def test_the_rest_of_a_load_comes_from_the_shards_so_far() -> None:
    # 60 s of engine start come first: they say nothing of the pace
    begun = (Stage(0, "load", "start"), Load(60, 0, 40), Note(70, "info", ""))
    at = standing(*begun, Load(100, 10, 40))
    eta = estimate(at, 110)
    assert eta is not None
    assert eta.seconds == pytest.approx(30 * 4 - 10)
    assert eta.stage == "shards"
    assert "shards" in eta.basis
    assert shard_pace(at) == 4
    assert estimate(standing(Stage(0, "load", "start"), Load(60, 0, 40)), 61) is None
    again = standing(Load(0, 0, 8), Load(9, 8, 8), Load(20, 0, 2), Load(30, 1, 2))
    assert shard_pace(again) == 10, "a second checkpoint has its own pace"
    at_once = standing(Load(5, 0, 5), Load(5.0001, 5, 5))
    assert shard_pace(at_once) is None, "read from the log in one piece"


def test_a_stage_that_tells_nothing_is_measured_against_an_earlier_run() -> None:
    past = Past(3, (StageTime("load", 100, 164), StageTime("extract", 164, None)))
    at = standing(Stage(1000, "load", "start"))
    eta = estimate(at, 1020, past)
    assert eta == Eta(44, "as in run 3", "load")
    assert estimate(at, 1065, past) is None, "longer than before: nothing is promised"
    assert overdue(at, 1065, past) is None
    assert overdue(at, 1090, past) == 26
    assert overdue(at, 1090, None) is None
    extracting = standing(Stage(1000, "extract", "start"))
    assert estimate(extracting, 1001, past) is None
    assert overdue(extracting, 9999, past) is None


def test_the_rest_of_an_extraction_comes_from_the_mean() -> None:
    begun = (Plan(0, 100, reused=20), Stage(0, "extract", "start"))
    own = standing(*begun, Progress(60, 50, 100, 0, 1, 1))
    eta = estimate(own, 60)
    assert eta is not None
    assert eta.seconds == pytest.approx(60 * 50 / 30), "samples kept from before cost no time"
    told = standing(*begun, Progress(60, 50, 100, 0, 1, 1, eta=33.0))
    eta = estimate(told, 63)
    assert eta is not None
    assert eta.seconds == pytest.approx(30)


def test_where_nothing_is_known_there_is_no_eta() -> None:
    assert estimate(Standing(), 0) is None
    assert estimate(standing(Stage(0, "load", "start")), 50) is None
    assert estimate(standing(Stage(0, "warmup", "start")), 50) is None
    assert estimate(standing(*scenes.failed_events()), scenes.NOW) is None


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [
        (412, 1000, "412 / 1 000"),
        (2528, 24_000, "2 528/24 000"),
        (24_000, 24_000, "24 000/24 000"),
        (100_000, 100_000, "100000/100000"),
        (7, None, "7 / -"),
    ],
)
def test_samples_in_the_history_are_never_cut(done: int, total: int | None, words: str) -> None:
    assert done_of(Samples(total, done, 0)) == words
    assert len(words) <= 13
