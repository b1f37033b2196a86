"""The state as a function of the news: nothing drawn, nothing connected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_agent.protocol.events import Ended, Event, Load, Progress, Stage
from eagle3_agent.protocol.messages import Welcome
from eagle3_agent.protocol.values import HostSample, Problem
from eagle3_console import store
from eagle3_console.checks import CheckBegan, CheckEnded
from eagle3_console.linkstate import Live, Offline, Reconnecting
from eagle3_console.store import State, apply
from support import scenes

NOW = 1000.0
WELCOME = Welcome(1, 1, "dev", 1, "gpu-01", "3.12.3", NOW, NOW)
LIVE = Live(0.024, WELCOME)
WHY = Problem("The link was lost", "no answer for 8 s", "wait")


def live(**changes: object) -> State:
    state = apply(State(target="gpu-01", now=NOW), store.LinkMoved(LIVE, NOW))
    return replace(state, **changes)  # type: ignore[arg-type]


def running() -> State:
    state = apply(live(), store.RunsCame(scenes.history()))
    return apply(state, store.Followed("0004"))


def test_runs_are_kept_newest_first_and_replaced_by_id() -> None:
    state = running()
    assert [r.number for r in state.runs] == [4, 3, 2, 1]
    ended = replace(state.runs[0], state="completed")
    after = apply(state, store.RunMoved(ended, NOW))
    assert [(r.number, r.state) for r in after.runs][:2] == [(4, "completed"), (3, "failed")]
    assert len(after.runs) == 4


def test_what_runs_is_followed_else_the_newest() -> None:
    state = running()
    assert store.to_follow(state) == "0004"
    fresh = scenes.summary(5, state="queued")
    state = apply(state, store.RunMoved(fresh, NOW))
    assert store.to_follow(state) == "0004"
    state = apply(state, store.RunMoved(replace(fresh, state="running"), NOW))
    assert store.to_follow(state) == "0004", "a running run stays in front of a newer one"
    state = apply(state, store.RunMoved(scenes.summary(4, state="completed"), NOW))
    assert store.to_follow(state) == "0005"
    assert store.to_follow(State()) == ""


def test_events_fold_into_the_standing_and_the_tail_leaves_figures_out() -> None:
    events: tuple[Event, ...] = (
        Stage(1.0, "load", "start"),
        Load(2.0, 1, 2),
        Stage(3.0, "load", "done"),
        Stage(3.0, "extract", "start"),
        Progress(4.0, 1, 10, 0, 100, 1000),
    )
    state = apply(running(), store.Happened("0004", events, True, NOW))
    assert state.standing.shards_done == 1
    assert state.standing.done == 1
    assert [type(e).__name__ for e in state.tail] == ["Stage", "Stage", "Stage"]


def test_events_of_another_run_change_nothing() -> None:
    state = running()
    news = store.Happened("0001", (Stage(1.0, "load", "start"),), True, NOW)
    assert apply(state, news) is state


def test_the_tail_is_bounded() -> None:
    events = tuple(Stage(float(i), "load", "start") for i in range(2000))
    state = apply(running(), store.Happened("0004", events, False, NOW))
    assert len(state.tail) == store.TAIL
    assert state.tail[-1] == events[-1]


def test_history_holds_ten_minutes_and_drops_a_clock_set_back() -> None:
    state = live()
    for t in range(0, 2000, 10):
        state = apply(state, store.Sampled(scenes.sample(NOW + t, 1), NOW + t))
    points = state.history["gpu:0"]
    assert points[-1].t - points[0].t == store.HISTORY
    state = apply(state, store.Sampled(scenes.sample(NOW - 5000, 1), NOW + 2000))
    assert len(state.history["gpu:0"]) == 1


def test_unknown_utilisation_stays_unknown() -> None:
    sample = scenes.sample(NOW, 1)
    sample = replace(sample, gpus=(replace(sample.gpus[0], utilization=None),))
    state = apply(live(), store.Sampled(sample, NOW))
    assert state.history["gpu:0"][-1].value is None
    assert state.history["memory"][-1].value == pytest.approx(100 * 212 / 1007)


def test_a_link_that_comes_back_catches_up_when_host_and_run_were_heard() -> None:
    state = apply(running(), store.Sampled(HostSample(NOW), NOW))
    state = apply(state, store.LinkMoved(Reconnecting(1, NOW + 5, NOW + 1, WHY), NOW + 1))
    assert not state.live
    assert state.shown_at == NOW
    state = apply(state, store.LinkMoved(LIVE, NOW + 9))
    assert state.catching_up == {"host", "run"}
    state = apply(state, store.Sampled(HostSample(NOW + 10), NOW + 10))
    assert state.catching_up == {"run"}
    assert state.caught_up_at is None
    state = apply(state, store.Happened("0004", (), False, NOW + 10.5))
    assert state.catching_up == {"run"}, "not before the file's end was reached"
    state = apply(state, store.Happened("0004", (), True, NOW + 11))
    assert state.catching_up == frozenset()
    assert state.caught_up_at == NOW + 11


def test_after_a_reconnect_an_ended_run_is_not_waited_for() -> None:
    state = apply(running(), store.Happened("0004", (Ended(NOW, "completed", 0),), True, NOW))
    state = apply(state, store.LinkMoved(Offline(NOW, WHY), NOW))
    state = apply(state, store.LinkMoved(LIVE, NOW + 1))
    assert state.catching_up == {"host"}


def test_latency_news_of_a_live_link_do_not_start_catching_up() -> None:
    state = apply(live(), store.Sampled(HostSample(NOW), NOW))
    state = apply(state, store.LinkMoved(Live(0.2, WELCOME), NOW + 1))
    assert state.catching_up == frozenset()


def test_the_hosts_clock_is_used_only_when_it_is_off() -> None:
    near = apply(live(), store.Sampled(HostSample(NOW + 0.7), NOW))
    assert near.clock_offset == 0
    far = apply(live(), store.Sampled(HostSample(NOW + 3600), NOW))
    assert far.host_now == NOW + 3600
    jitter = apply(far, store.Sampled(HostSample(NOW + 3601.4), NOW + 1))
    assert jitter.clock_offset == far.clock_offset


def test_a_check_is_going_on_until_it_ends_and_keeps_the_last_report() -> None:
    report = scenes.blocked_report()
    state = apply(live(), CheckBegan(NOW, starting=True))
    assert state.checks.since == NOW
    assert state.checks.starting
    state = apply(state, CheckEnded(report))
    assert state.checks.since is None
    assert state.checks.report is report
    assert apply(apply(state, CheckBegan(NOW)), CheckEnded()).checks.report is report


def test_details_are_bounded() -> None:
    state = live()
    for number in range(1, store.DETAILS + 20):
        state = apply(state, store.DetailCame(scenes.detail(scenes.summary(number))))
    assert len(state.details) == store.DETAILS
    assert f"{store.DETAILS + 19:04d}" in state.details


def test_simulated_gpus_are_noticed() -> None:
    sample = scenes.sample(NOW, 1)
    assert not apply(live(), store.Sampled(sample, NOW)).simulated
    fake = replace(sample.gpus[0], name="SIMULATED H200")
    assert apply(live(), store.Sampled(replace(sample, gpus=(fake,)), NOW)).simulated


@given(st.lists(st.integers(0, 50), max_size=60))
def test_any_order_of_events_gives_a_state(numbers: list[int]) -> None:
    events = scenes.failed_events()
    state = running()
    for number in numbers:
        event = events[number % len(events)]
        state = apply(state, store.Happened("0004", (event,), False, NOW))
    assert len(state.tail) <= len(numbers)
