"""Runs recorded on one H200: what is said of where the time went, at every moment of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from eagle3_agent.protocol.events import Throughput
from eagle3_agent.runs import RunFolder
from eagle3_console import bounds, store
from eagle3_console.linkstate import Live
from eagle3_console.store import State
from eagle3_console.widgets.pages import Known, run_page
from support.recording import Recorded, host_at

ROOT = Path(__file__).parents[1] / "recorded" / "h200-one"
RUNS = ("0001", "0002", "0003", "0004")


@cache
def recorded(run: str) -> Recorded:
    return Recorded(RunFolder(ROOT / run))


def played(run: str, until: float) -> State:
    """What a console that follows the run from its start knows at ``until``."""
    one = recorded(run)
    at = one.record.created
    link = host_at(one.exit.ended)
    state = store.apply(State(target="h200", now=at), store.LinkMoved(Live(0.03, link.welcome), at))
    running = replace(one.summary(), state="running", ended=None)
    state = store.apply(state, store.RunsCame((running,)))
    state = store.apply(state, store.Followed(run))
    state = store.apply(state, store.DetailCame(one.detail()))
    for event in one.events:
        if event.t <= until:
            state = store.apply(state, store.Happened(run, (event,), False, event.t))
    return state


@pytest.mark.parametrize("run", ["0001", "0003", "0004"])
def test_figures_of_a_real_extraction_hold_together(run: str) -> None:
    told = [e for e in recorded(run).events if isinstance(e, Throughput)]
    assert len(told) >= 3
    for before, after in itertools.pairwise(told):
        assert after.t >= before.t
        for name in ("tokens", "steps", "prefill", "copy", "write", "wait", "buffer_peak"):
            assert getattr(after, name) >= getattr(before, name), name
    last = told[-1]
    assert 0 < last.prefill <= last.seconds
    assert last.buffer_peak <= last.buffer_limit
    assert last.padding == 0.0
    assert 0.9 < last.fill <= 1.0


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("run", RUNS)
def test_every_moment_can_be_drawn(run: str, width: int) -> None:
    for event in recorded(run).events:
        state = played(run, event.t)
        assert state.run is not None
        run_page(Known(state.run, state.standing, state.tail), state, width)


def test_the_whole_run_was_bound_by_the_model() -> None:
    state = played("0001", float("inf"))
    assert state.standing.throughput is not None
    assert bounds.words(state.standing.throughput).startswith("bound by the model: 9")
