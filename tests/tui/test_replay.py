"""Real runs of two H200s, replayed through the store and the screens."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.events import Load, Stage
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.messages import Checked, RunPreflight
from eagle3_agent.protocol.values import Problem, RunSummary
from eagle3_agent.summaries import Index, detail
from eagle3_console import store
from eagle3_console.linkstate import Live, Reconnecting
from eagle3_console.screens.log import LogScreen
from eagle3_console.screens.pages import ErrorsScreen
from eagle3_console.store import State
from eagle3_console.widgets.charts import chart_lines
from eagle3_console.widgets.events import event_lines
from eagle3_console.widgets.gpus import host_lines
from eagle3_console.widgets.pages import Known, errors_page, run_page
from eagle3_console.widgets.run import run_lines, stage_items
from support import recording, verdicts
from support.recording import RUNS, host_at, moment, recorded
from support.tui import Clock, make_app, rows, sees, until

SIZES = ((80, 24), (120, 40), (200, 60))


def draw(state: State) -> None:
    """Every panel that shows a run and its host, at every size."""
    run = state.run
    assert run is not None
    for width, height in SIZES:
        host_lines(state, width, height)
        chart_lines(state, width, height)
        event_lines(state.tail, height, width)
        run_lines(state, run, width)
        known = Known(run, state.standing, state.tail)
        run_page(known, state, width)
        errors_page(known, state, width)


def following(run: str, at: float) -> State:
    link = host_at(recorded(run).exit.ended)
    state = store.apply(State(target="h200", now=at), store.LinkMoved(Live(0.03, link.welcome), at))
    state = store.apply(state, store.RunsCame(tuple(recorded(r).summary() for r in RUNS)))
    state = store.apply(state, store.Followed(run))
    return store.apply(state, store.DetailCame(recorded("0001").detail()))


@pytest.mark.parametrize("run", RUNS)
def test_every_prefix_of_a_recording_can_be_drawn_and_the_whole_ends_as_the_host_said(
    run: str,
) -> None:
    one = recorded(run)
    state = following(run, one.events[0].t)
    samples = [sample for sample, _ in one.samples]
    running = replace(one.summary(), state="running", ended=None)
    state = store.apply(state, store.RunMoved(running, state.now))
    draw(state)
    for event in one.events:
        while samples and samples[0].t <= event.t:
            state = store.apply(state, store.Sampled(samples[0], samples.pop(0).t))
        state = store.apply(state, store.Happened(run, (event,), False, event.t))
        draw(state)
    state = store.apply(state, store.RunMoved(one.summary(), one.exit.ended))
    draw(state)
    ended = state.standing.ended
    assert ended is not None
    assert (ended.state, ended.code, ended.signal) == (
        one.exit.state,
        one.exit.code,
        one.exit.signal,
    )
    summary = one.summary()
    assert state.standing.samples == summary.samples
    assert state.standing.bytes == summary.bytes
    assert all(stage.ended is not None for stage in state.standing.stages)


def test_the_agents_own_history_of_these_folders_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path))
    from eagle3_agent import paths

    shutil.copytree(recording.ROOT, paths.runs_dir(), ignore=shutil.ignore_patterns("*.md"))
    index = Index()
    index.refresh()
    assert index.summaries() == [recorded(run).summary() for run in RUNS]
    for run in RUNS:
        entry = index.find(run)
        assert entry is not None
        assert detail(entry).stages == recorded(run).detail().stages


@pytest.mark.parametrize("run", RUNS)
async def test_a_recording_in_torn_pieces_ends_as_the_host_said(run: str) -> None:
    """Through the app: the events come in pieces that end anywhere, the log and GPUs beside."""
    one = recorded(run)
    link = host_at(one.record.created)
    data = one.folder.events.read_bytes()
    app = make_app(link, clock=Clock(one.exit.ended))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, f"RUN {one.record.number}")
        begun = sum(len(line) for line, e in zip(one.lines, one.events) if e.t <= link.welcome.now)
        size = 1
        while begun < len(data):
            link.write(run, "events", data[begun : begun + size])
            begun += size
            size = size * 2 % 4093 + 1
            await pilot.pause()
        link.write(run, "events", b"", ended=True)
        await until(pilot, lambda: app.state.standing.ended is not None)
        ended = app.state.standing.ended
        assert ended is not None
        assert ended.state == one.exit.state
        assert app.state.standing == one.standing(float("inf"))


async def test_the_gpus_history_is_there_when_one_connects_late() -> None:
    at = moment("0001", after_extract=20.0)
    link = host_at(at)
    app = make_app(link, clock=Clock(at))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "309 / 500 samples", "last 2 min", " load ", "▏extr", "vLLM 0.16.0")
        await until(pilot, lambda: len(app.state.history["gpu:1"]) > 30, "the recalled samples")
        points = app.state.history["gpu:0"]
        assert [p.t for p in points] == sorted(p.t for p in points)
        assert points[0].t < recorded("0001").record.created + 1
        assert any("▁▁▁▁▁▁▁" in row for row in rows(app)), "the load is a line of nothing"


async def test_a_load_is_measured_against_the_run_before() -> None:
    at = moment("0002", after_extract=-25.0)
    link = host_at(at)
    app = make_app(link, clock=Clock(at))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 2", "starting the engine; no shard yet", "load took 1:04 in run 1")
        await sees(pilot, "loaded in 0:37 (as in run 1)", "then 500 samples")


async def test_a_load_that_takes_longer_than_before_says_so() -> None:
    at = moment("0002", after_extract=-25.0)
    link = host_at(at)
    link.samples = [replace(link.samples[0], t=at + 90)]
    app = make_app(link, clock=Clock(at + 90))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "! load takes 0:52 longer than in run 1; l shows what it says")


def test_the_pace_of_the_shards_leaves_the_engines_start_out() -> None:
    one = recorded("0001")
    third = next(e.t for e in one.events if isinstance(e, Load) and e.done == 3)
    state = following("0002", third)
    state = replace(state, standing=one.standing(third), details={}, clock_offset=0.0)
    run = state.run
    assert run is not None
    text = "\n".join(line.plain for line in run_lines(replace_running(state), run_of(state), 120))
    assert "4.0 shards/s" in text
    assert "all shards in 1 s" in text


def replace_running(state: State) -> State:
    runs = tuple(replace(r, state="running", ended=None) for r in state.runs if r.run == "0002")
    return replace(state, runs=runs)


def run_of(state: State) -> RunSummary:
    run = replace_running(state).run
    assert run is not None
    return run


async def test_the_errors_of_a_killed_rank_name_the_rank_that_died_and_l_goes_there() -> None:
    at = recorded("0002").exit.ended + 1
    link = host_at(at)
    app = make_app(link, clock=Clock(at))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 2", "RuntimeError: Executor failed.")
        await pilot.press("e")
        await sees(
            pilot,
            "RUN 2 FAILED after 1:06, in extract, at sample 90",
            "rank 1",
            "Worker proc VllmWorker-1 died unexpectedly",
            "was killed from outside",
            "Followed from it",
        )
        assert isinstance(app.screen, ErrorsScreen)
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        log = app.screen
        assert isinstance(log, LogScreen)
        await until(pilot, lambda: log.view.hit is not None)
        hit = log.view.hit
        assert hit is not None
        assert b"VllmWorker-1 died unexpectedly" in log.buffer.raw(hit)
        await sees(pilot, "Traceback (most recent call last)", "died unexpectedly")
        assert not log.view.follow


async def test_the_log_of_the_dashboard_follows_its_end_as_before() -> None:
    at = recorded("0002").exit.ended + 1
    app = make_app(host_at(at), clock=Clock(at))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 2")
        await pilot.press("l")
        await sees(pilot, "LOG  run 2", "resource_tracker: There appear to be")
        log = app.screen
        assert isinstance(log, LogScreen)
        assert log.view.hit is None


def test_torn_and_foreign_lines_of_a_recording_are_left_out() -> None:
    line = recorded("0001").lines[0]
    assert decode_event(line) is not None
    assert all(decode_event(line[:cut]) is None for cut in range(1, len(line) - 1))


async def test_on_a_narrow_screen_what_a_check_says_stands_under_its_title() -> None:
    at = recorded("0002").exit.ended + 1
    link = host_at(at)
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.blocked(at)))
    app = make_app(link, profile=verdicts.profile(), clock=Clock(at))
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 2")
        await pilot.press("p")
        await sees(
            pilot, "✗ GPU memory free", "GPU 0: 85.9 GiB of 140.4 GiB", "✗ Model and states fit"
        )
        titles = [row.strip() for row in rows(app) if "✗ " in row]
        assert "✗ GPU memory free" in titles, "nothing beside it"


async def test_the_run_under_the_cursor_of_the_history_shows_what_the_list_leaves_out() -> None:
    at = recorded("0004").exit.ended + 30
    app = make_app(host_at(at), clock=Clock(at))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h", "down", "down")
        await sees(pilot, "! aborted", "engine speculators", "98 915 tokens", "in collective_rpc")
        await sees(pilot, '▶ raise RuntimeError("Executor failed.")')


async def test_the_wait_for_the_next_attempt_runs_down() -> None:
    at = moment("0001", after_extract=20.0)
    link, clock = host_at(at), Clock(at)
    app = make_app(link, clock=clock)
    why = Problem("The link was lost", "no answer for 8 s", "it is tried again by itself")
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "309 / 500 samples")
        link.move(Reconnecting(3, at + 8, at, why))
        await sees(pilot, "reconnecting (3)", "runs on the host go on")
        lengths = []
        for _ in range(3):
            clock.t += 2
            app._tick()
            await pilot.pause()
            (row,) = [row for row in rows(app) if "runs on the host go on" in row]
            lengths.append(row.count("█"))
        assert lengths == [6, 12, 18]


def test_a_queued_run_shows_its_second_check_alone() -> None:
    standing = Standing()
    for begin, end in ((1, 2), (60, 64)):
        standing = fold(standing, Stage(begin, "preflight", "start"))
        standing = fold(standing, Stage(end, "preflight", "done"))
    items = [item.plain for item in stage_items(standing, 70.0)]
    assert [item for item in items if "preflight" in item] == ["preflight ✓ 4 s"]
