"""What bounds an extraction: shares of the time, and the sentence that follows from them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_agent.protocol.events import Progress, Throughput, decode_event
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import StageTime
from eagle3_console import bounds, render, store
from eagle3_console.widgets import throughput as widget
from eagle3_console.widgets.events import describe

NOTHING = Throughput(
    t=1.0, seconds=0.0, tokens=0, steps=0, prefill=0.0, capture=0.0, copy=0.0, write=0.0, wait=0.0,
    padding=0.0, fill=0.0, threads=0, buffer_peak=0, buffer_limit=0,
)  # fmt: skip


def told(**changes: Any) -> Throughput:
    """100 s with the model busy for 93 of them, four writers for 120 s together."""
    base = dataclasses.replace(
        NOTHING, seconds=100.0, tokens=230_000, steps=112, prefill=93.0, capture=2.0, copy=8.0,
        write=120.0, wait=1.0, padding=0.011, fill=0.97, threads=4, buffer_peak=1 << 30,
        buffer_limit=8 << 30,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({}, "prefill", "bound by the model: 93 % of the time in it"),
        (
            {"prefill": 57.0, "wait": 38.0},
            "waiting",
            "bound by the disk: the model waited 38 % of the time",
        ),
        (
            {"prefill": 40.0, "capture": 55.0},
            "capture",
            "bound by the capture: 55 % of the time",
        ),
        (
            {"prefill": 20.0},
            "other",
            "bound by what feeds the model: it stood idle 77 % of the time",
        ),
    ],
)
def test_what_bounds_a_run_is_said(changes: dict[str, float], part: str, words: str) -> None:
    assert bounds.bound(told(**changes)) == part
    assert bounds.words(told(**changes)) == words


def test_a_short_wait_does_not_hide_the_model() -> None:
    assert bounds.bound(told(prefill=80.0, wait=14.0)) == "prefill"
    assert bounds.bound(told(prefill=80.0, wait=15.0)) == "waiting"


def test_before_the_first_step_nothing_is_said() -> None:
    assert bounds.shares(NOTHING) is None
    assert bounds.bound(NOTHING) is None
    assert bounds.words(NOTHING) == ""
    assert widget.lines(NOTHING, 120) == []
    assert dict(bounds.facts(NOTHING))["steps"] == "-"
    assert dict(bounds.facts(NOTHING))["0 writers"] == "- busy"


def test_the_figures_have_their_units() -> None:
    assert dict(bounds.facts(told())) == {
        "4 writers": "30 % busy",
        "buffer": "1.0 GiB of 8.0 GiB",
        "steps": "97 % full",
        "padding": "1 %",
        "copy": "8 %",
    }
    assert bounds.model_rate(told()) == 2300.0


_NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e15)


@given(seconds=_NUMBERS, prefill=_NUMBERS, capture=_NUMBERS, wait=_NUMBERS, threads=st.integers())
def test_whatever_a_host_says_the_shares_make_one(**changes: Any) -> None:
    value = told(**changes)
    parts = bounds.shares(value)
    bounds.words(value)
    bounds.facts(value)
    if parts is None:
        return
    assert math.isclose(sum(share for _, share in parts.items()), 1.0)
    assert all(0 <= share <= 1 for _, share in parts.items())
    bar = widget.bar_parts(parts, 24)
    assert sum(len(part[0]) for part in bar) == 24


def test_parts_are_told_apart_without_colour() -> None:
    first, second = widget.lines(told(prefill=50.0, capture=10.0, wait=30.0), 120)
    assert first.plain.startswith("█" * 12 + "▓" * 2 + "▒" * 8 + "░" * 2 + " ")
    assert "▒ disk wait  30 %" in first.plain
    assert second.plain.startswith("! bound by the disk: the model waited 30 % of the time")
    (only,) = widget.lines(told(), 78)
    assert only.plain.startswith("bound by the model")


def test_the_event_is_folded_kept_out_of_the_tail_and_decoded() -> None:
    line = b'{"type":"Throughput","t":1,"seconds":2,"tokens":3,"steps":1,"prefill":1.5,"capture":0,'
    line += b'"copy":0,"write":1,"wait":0,"padding":0,"fill":0.5,"threads":2,"buffer_peak":9,'
    event = decode_event(line + b'"buffer_limit":99,"new":true}')
    assert isinstance(event, Throughput)
    assert fold(Standing(), event).throughput == event
    assert store.kept_tail((), [event, Progress(1, 1, 2, 0, 5, 9)]) == ()
    assert describe(event)[2] == "3 tokens in 1 step: bound by the model: 75 % of the time in it"


def test_a_line_of_progress_tells_of_the_disk_alone() -> None:
    begun = dataclasses.replace(
        fold(Standing(), told()), stages=(StageTime("extract", 1.0),), total=10
    )
    assert "bound" not in render.progress_line(begun)
    late = fold(begun, told(wait=60.0, prefill=30.0))
    assert "bound by the disk: the model waited 60 % of the time" in render.progress_line(late)
