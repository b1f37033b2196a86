"""The overview's warnings: what stands still, in which way, and whether the disk will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from textual._compositor import LayoutUpdate
from textual.geometry import Region

from eagle3_agent.protocol.events import Event, Load, Note, Plan, Progress, Stage, Throughput
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.messages import RunChanged, Telemetry
from eagle3_agent.protocol.values import HostSample, StageTime
from eagle3_console import stall, store
from eagle3_console.eta import Past
from eagle3_console.linkstate import Live
from eagle3_console.store import Point, State
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import disk_left, run_lines
from support import scenes
from support.scenes import GIB, NOW
from support.tui import Clock, make_app, sees, shown, until


def standing(*events: Event) -> Standing:
    made = Standing()
    for event in events:
        made = fold(made, event)
    return made


def extract(done: int, at: float, began: float = NOW) -> tuple[Event, ...]:
    return (
        Stage(began, "extract", "start"),
        Progress(at, done, 1000, 0, done * 100, done * 1000),
    )


def at(when: float, made: Standing, gpus: dict[str, tuple[Point, ...]], **changes: object) -> State:
    link = scenes.idle()
    state = State(
        target="gpu-01",
        now=when,
        link=Live(0.02, link.welcome),
        runs=(scenes.summary(4),),
        current="0004",
        standing=made,
        history=gpus,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def busy(until: float, now: float, *, from_: float = NOW) -> tuple[Point, ...]:
    """One point in five seconds: busy up to ``until``, idle from then on."""
    times = range(int(from_), int(now) + 1, 5)
    return tuple(Point(float(t), 90.0 if t <= until else 0.0) for t in times)


# ------------------------------------------------------------------------- stall


def test_a_silent_run_with_busy_gpus_is_not_said_to_stand_still() -> None:
    now = NOW + 300
    state = at(now, standing(*extract(60, NOW + 60)), {"gpu:0": busy(now, now)})
    found = stall.of(state)
    assert found is not None
    assert found.words == "no sample for 4:00; GPUs busy"
    assert not found.nothing_moves


def test_nothing_moves_when_every_gpu_is_idle_too() -> None:
    now = NOW + 300
    gpus = {"gpu:0": busy(NOW + 60, now), "gpu:1": busy(NOW + 90, now)}
    found = stall.of(at(now, standing(*extract(60, NOW + 60)), gpus))
    assert found is not None
    assert found.nothing_moves
    assert found.words == "nothing moves: no sample, no write for 4:00, GPUs idle for 3:30"


@pytest.mark.parametrize(
    "gpus", [{}, {"gpu:0": busy(NOW, NOW + 200)}, {"gpu:0": (Point(NOW, None),)}]
)
def test_without_fresh_figures_nothing_is_claimed_of_the_gpus(
    gpus: dict[str, tuple[Point, ...]],
) -> None:
    found = stall.of(at(NOW + 300, standing(*extract(60, NOW + 60)), gpus))
    assert found is not None
    assert found.words == "no sample for 4:00; nothing is known of the GPUs"


def test_ranks_that_wait_in_a_collective_are_told_from_work_by_their_power() -> None:
    now = NOW + 300
    made = standing(*extract(60, NOW + 60))
    gpus = tuple(replace(scenes.gpu(i, now), utilization=100, power=130.0) for i in range(2))
    state = at(now, made, {"gpu:0": busy(now, now)}, host=HostSample(now, gpus))
    found = stall.of(state)
    assert found is not None
    assert "little power: ranks may wait" in found.words
    working = tuple(replace(g, power=400.0) for g in gpus)
    found = stall.of(replace(state, host=HostSample(now, working)))
    assert found is not None
    assert found.words.endswith("GPUs busy")


def test_figures_and_notes_are_no_progress() -> None:
    told = scenes.throughput()
    made = standing(
        *extract(60, NOW + 60),
        replace(told, t=NOW + 290),
        Note(NOW + 295, "info", "still here"),
        Progress(NOW + 296, 60, 1000, 0, 6000, 60000),
    )
    assert made.last == NOW + 296
    assert made.moved == NOW + 60
    assert stall.of(at(NOW + 300, made, {})) is not None


@pytest.mark.parametrize(
    ("events", "past", "patience"),
    [
        (extract(60, NOW + 60), None, 60.0),
        (extract(4, NOW + 120), None, 300.0),  # 30 s a sample
        (extract(0, NOW), None, 300.0),  # the first is waited for
        ((Stage(NOW, "load", "start"),), None, 600.0),
        ((Stage(NOW, "load", "start"),), 1000.0, 1250.0),
        ((Stage(NOW, "load", "start"),), 20.0, 180.0),
        (
            (Stage(NOW, "load", "start"), Load(NOW + 1, 1, 64), Load(NOW + 41, 5, 64)),
            1000.0,
            200.0,  # 10 s a shard
        ),
        (
            (Stage(NOW, "load", "start"), Load(NOW + 1, 1, 5), Load(NOW + 41, 5, 5)),
            1000.0,
            1250.0,  # all read: the engine makes ready
        ),
        ((Stage(NOW, "warmup", "start"),), None, 600.0),
    ],
)
def test_how_long_silence_is_usual(
    events: tuple[Event, ...], past: float | None, patience: float
) -> None:
    before = None
    if past is not None:
        before = Past(1, [StageTime(n, 0.0, past) for n in ("load", "warmup")])
    made = standing(*events)
    assert stall.patience(made, before) == patience
    since = made.moved
    assert since is not None
    state = at(since + patience - 1, made, {})
    if before is None:
        assert stall.of(state) is None
        assert stall.of(replace(state, now=since + patience + 1)) is not None


def test_nobody_knows_without_a_link_and_an_ended_run_does_not_stall() -> None:
    made = standing(*extract(60, NOW + 60))
    state = at(NOW + 300, made, {})
    assert stall.of(state) is not None
    assert stall.of(replace(state, link=State().link)) is None
    over = (scenes.summary(4, state="failed", ended=NOW + 100),)
    assert stall.of(replace(state, runs=over)) is None
    done = standing(*extract(60, NOW + 60), Stage(NOW + 61, "extract", "done"))
    assert stall.of(at(NOW + 300, done, {})) is None


async def test_a_stalled_run_is_told_on_the_smallest_screen_and_goes_when_it_moves() -> None:
    link = scenes.extracting()
    clock = Clock()
    app = make_app(link, clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "412 / 1 000 samples")
        assert "nothing moves" not in shown(app)
        for later in (30, 60, 90, 120):
            clock.t = NOW + later
            app.apply(store.Sampled(scenes.sample(clock.t, busy=False), clock.t))
        await sees(pilot, "! nothing moves: no sample, no write for 2:01, GPUs idle for 2:00")
        await sees(pilot, "0.0 tok/s for 2:01", "ETA -")
        link.happen("0004", Progress(clock.t, 413, 1000, 0, 1_724_000, int(47.2 * GIB)))
        await until(pilot, lambda: "nothing moves" not in shown(app))


# ------------------------------------------------------------------------- disk


def planned(free: int | None, written: int, t: float = NOW) -> Standing:
    told: Throughput = replace(scenes.throughput(), t=t, disk_free=free)
    return standing(
        Plan(NOW, 1000, 4_000_000, 100 * GIB),
        Stage(NOW, "extract", "start"),
        Progress(NOW, 400, 1000, 0, 1_000_000, written),
        told,
    )


def test_the_room_on_the_disk_and_whether_the_rest_fits() -> None:
    fits = disk_left(planned(int(3.1 * 1024 * GIB), 40 * GIB), NOW)
    assert fits is not None
    assert fits.plain == "3.1 TiB left"
    just = disk_left(planned(60 * GIB, 40 * GIB), NOW)
    assert just is not None
    assert just.plain == "60.0 GiB left"
    short = disk_left(planned(60 * GIB - 1, 40 * GIB), NOW)
    assert short is not None
    assert short.plain == "! 60.0 GiB left, 60.0 GiB to write"
    assert any("$warning" in str(span.style) for span in short.spans)


def test_an_old_figure_says_so_and_none_is_made_up() -> None:
    old = disk_left(planned(60 * GIB, 40 * GIB, t=NOW), NOW + 600)
    assert old is not None
    assert old.plain == "60.0 GiB left 10 min ago"
    assert disk_left(planned(None, 0), NOW) is None
    assert disk_left(Standing(), NOW) is None


def test_the_overview_has_it_beside_the_bytes_written() -> None:
    state = at(NOW, standing(*scenes.extracting_events(disk=True)), {})
    run = state.run
    assert run is not None
    text = "\n".join(line.plain for line in run_lines(state, run, 120))
    assert "47.1 GiB of 114.3 GiB written" in text
    assert "! 58.0 GiB left, 67.2 GiB to write" in text


async def test_an_old_agents_run_shows_no_disk_and_no_dash() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "3.1 TiB left")
        bare = replace(scenes.throughput(), t=NOW, disk_free=None, disk_total=None)
        link.happen("0004", bare)
        link.push(RunChanged(scenes.summary(4)))
        await until(pilot, lambda: " left" not in shown(app))


# ------------------------------------------------------------------------- quiet


async def test_a_second_without_news_redraws_the_clock_alone() -> None:
    link = scenes.idle()
    clock = Clock()
    app = make_app(link, clock=clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "No run", "14:02:11")
        drawn: list[str] = []
        for panel in app.screen.query(Panel):
            panel.refresh = _noted(drawn, panel)  # type: ignore[method-assign]
        clock.t += 1
        app.apply(store.Ticked(clock.t))
        await sees(pilot, "14:02:12")
        assert drawn == ["Header"]
        assert not app.screen._repaint_required


def _noted(drawn: list[str], panel: Panel) -> Callable[..., Panel]:
    kept = panel.refresh

    def refresh(*regions: Region, **how: bool) -> Panel:
        drawn.append(type(panel).__name__)
        return kept(*regions, **how)

    return refresh


async def test_news_does_not_repaint_the_whole_screen() -> None:
    link = scenes.idle()
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "No run")
        full: list[bool] = []
        compositor = app.screen._compositor
        kept = compositor.render_full_update

        def render(*, simplify: bool = False) -> LayoutUpdate:
            full.append(True)
            return kept(simplify=simplify)

        compositor.render_full_update = render  # type: ignore[method-assign, assignment]
        for second in (1, 2, 3):
            link.push(Telemetry(scenes.sample(NOW + second)))
            await pilot.pause(0.1)
        await sees(pilot, "71.2 /  95.6")
        assert full == []
