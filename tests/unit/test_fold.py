"""Where a run stands, from its events alone."""

from __future__ import annotations

from functools import reduce

import pytest

from eagle3_agent.protocol import EVENT_TYPES, ProtocolError, decode, decode_event
from eagle3_agent.protocol.events import (
    Ended,
    Event,
    Failure,
    Load,
    Note,
    Patched,
    Plan,
    Progress,
    Stage,
)
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import ErrorInfo, PatchFinding, Samples


def standing(*events: Event) -> Standing:
    return reduce(fold, events, Standing())


def test_stages_follow_one_another_and_carry_their_times() -> None:
    now = standing(
        Stage(10, "preflight", "start"),
        Stage(12, "preflight", "done"),
        Stage(12, "load", "start"),
        Load(13, 3, 64),
    )
    assert [(s.name, s.started, s.ended) for s in now.stages] == [
        ("preflight", 10, 12),
        ("load", 12, None),
    ]
    assert now.stage_seconds("preflight") == 2
    assert now.stage_seconds("load") is None
    assert now.stage_seconds("load", now=20) == 8
    assert now.stage_seconds("extract", now=20) is None
    assert (now.shards_done, now.shards_total) == (3, 64)


def test_a_stage_that_was_never_closed_ends_where_the_next_begins() -> None:
    now = standing(Stage(1, "load", "start"), Stage(5, "extract", "start"))
    assert now.stage_seconds("load") == 4


def test_progress_replaces_what_was_known_and_the_mean_rests_on_the_extract_stage() -> None:
    now = standing(
        Plan(0, 10, tokens=1000, bytes=5000, reused=2),
        Stage(1, "extract", "start"),
        Progress(2, 3, 10, 1, 300, 1500, 250.0, 10.0, 4.0),
        Progress(5, 6, 10, 1, 800, 4000, 200.0, 10.0, 2.0),
    )
    assert now.samples == Samples(10, 6, 1)
    assert (now.tokens, now.bytes, now.rate, now.eta, now.reused) == (800, 4000, 200.0, 2.0, 2)
    assert now.mean_rate() == 200.0
    assert now.mean_rate(now=9) == 100.0


def test_no_rate_is_made_up_before_the_first_token() -> None:
    assert standing(Stage(1, "extract", "start")).mean_rate(now=5) is None
    assert Standing().mean_rate(now=5) is None


def test_the_first_failure_is_the_cause() -> None:
    first = ErrorInfo("RuntimeError", "")
    now = standing(
        Stage(1, "load", "start"),
        Failure(2, first),
        Failure(3, ErrorInfo("BrokenPipeError", "x")),
        Ended(4, "failed", code=1),
    )
    assert now.error is first
    assert now.failed_stage == "load"
    assert now.stages[-1].ended == 4


def test_a_finished_run_has_no_eta_left() -> None:
    now = standing(Progress(2, 3, 10, 0, 300, 1500, 250.0, 10.0, 4.0), Ended(3, "aborted"))
    assert now.eta is None
    assert now.ended is not None
    assert now.ended.state == "aborted"


def test_a_patch_is_listed_once_with_what_was_said_last() -> None:
    def finding(status: str) -> PatchFinding:
        return PatchFinding("speculators/x", "x", status, "seen")  # type: ignore[arg-type]

    now = standing(Patched(1, finding("needed"), False), Patched(2, finding("needed"), True))
    assert now.applied == ("speculators/x",)
    assert len(now.patches) == 1


def test_warnings_are_kept_and_bounded() -> None:
    now = standing(*(Note(float(i), "warning", str(i)) for i in range(150)), Note(1, "info", "i"))
    assert len(now.warnings) == 100
    assert now.warnings[-1].text == "149"


def test_a_number_that_is_none_is_refused_where_it_is_read() -> None:
    huge = b'{"type":"Load","t":' + b"9" * 400 + b',"done":1,"total":2}'
    with pytest.raises(ProtocolError, match=r"Load\.t: a number of 400 digits"):
        decode(huge, EVENT_TYPES)
    assert decode_event(b'{"type":"Load","t":NaN,"done":1,"total":2}') is None
    assert decode_event(b'{"type":"Load","t":Infinity,"done":1,"total":2}') is None
