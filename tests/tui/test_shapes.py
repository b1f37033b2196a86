"""Any host at any size: nothing overlaps, nothing is cut, nothing hostile gets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from eagle3_agent.protocol import encode
from eagle3_agent.protocol.events import Failure, Note, Progress, Skipped, Stage, Wrote
from eagle3_agent.protocol.messages import Act, Acted, Checked, Probing, RunPreflight, Telemetry
from eagle3_agent.protocol.values import (
    Action,
    ErrorInfo,
    Gpu,
    GpuProcess,
    Report,
    Samples,
    Where,
)
from support import scenes
from support.fakelink import FakeLink
from support.tui import make_app, rows, sees, shown, until

SIZES = [(80, 24), (120, 40), (200, 60), (60, 20), (40, 12)]
EVIL = "\x1b[2J[/model][bold]\u202e\x00\x07" + "long " * 400


def assert_fits(screen: list[str], width: int, height: int) -> None:
    assert len(screen) == height
    for row in screen:
        assert cell_len(row) == width, row
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in row), row


async def test_eight_gpus_fit_80_by_24_with_the_run_and_its_events() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 4", "wrote data_411.pt", "8 × RTX PRO 6000")
        screen = rows(app)
        gpus = [r for r in screen if " 95.6 " in r]
        assert [r.split()[0] for r in gpus] == [str(i) for i in range(8)]
        for row in gpus:
            assert "71.2 /  95.6" in row
            assert " %" in row
            assert "W" in row
            assert "…" not in row
        text = "\n".join(screen)
        assert "412 / 1 000 samples" in text
        assert "ETA 18:04 at 14:20 (mean of this run)" in text
        assert "47.1 GiB of 114.3 GiB written" in text
        assert "0 skipped" in text
        keys = "s start a abort p preflight e errors h history l log f profile ? help q quit"
        assert " ".join(screen[-1].split()) == keys


async def test_sixteen_gpus_fit_80_by_24_two_a_row() -> None:
    app = make_app(scenes.extracting(16))
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 4", "412 / 1 000 samples", "ETA 18:04")
        gpus = [r.split() for r in rows(app) if r.count("95.6") == 2]
        assert len(gpus) == 8
        assert_fits(rows(app), 80, 24)


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_fits_every_size_with_a_hostile_host(size: tuple[int, int]) -> None:
    app = make_app(hostile())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.state.standing.error is not None)
        assert_fits(rows(app), *size)
        preflight = ("p", "space", "1", "G", "y", "j", "r", "D", "9", "escape", "o", "n", "escape")
        others = ("h", "enter", "space", "e", "l", "f", "question_mark", "escape", "a")
        for key in (*preflight, *others):
            await pilot.press(key)
            await pilot.pause()
            assert_fits(rows(app), *size)


def hostile() -> FakeLink:
    """A host that says nothing but what could hurt."""
    link = FakeLink(now=scenes.NOW)
    error = ErrorInfo(EVIL, EVIL, -7, Where(EVIL, 10**9, EVIL, EVIL), "\n".join([EVIL] * 30))
    run = scenes.summary(
        10**12,
        profile=EVIL,
        engine=EVIL,
        model=EVIL,
        output_dir=EVIL,
        started=1e300,
        samples=Samples(10**30, 10**29, 10**28),
        tokens=10**40,
        tokens_per_second=1e200,
        bytes=10**40,
        error=error,
        stage=EVIL,
    )
    link.runs = (run, *scenes.history())
    link.details = {run.run: scenes.detail(run, environment={EVIL: {EVIL: EVIL}})}
    process = GpuProcess(10**12, EVIL, EVIL, 10**30)
    gpus = (
        Gpu(0, EVIL, EVIL, 10**30, 1, 10**9, 10**9, 1e200, None, (process,)),
        Gpu(10**9, error=EVIL),
        Gpu(2, "", "", 10, 0, -5, -300, float("inf"), None, ()),
    )
    strange = replace(scenes.sample(scenes.NOW), gpus=gpus, driver=EVIL)
    link.samples = [replace(strange, t=t) for t in (float("inf"), -1e300, 0.0, scenes.NOW)]
    action = Action(EVIL, "terminate", EVIL, (EVIL,) * 30, unit=EVIL, path=EVIL, aside=EVIL)
    acts = (action, replace(action, id="2", title=""), replace(action, id="3", effect=()))
    told: dict[str, Any] = {"saw": EVIL, "why": EVIL, "todo": EVIL, "title": EVIL}
    block, *others = scenes.blocked_report().verdicts
    bad = replace(block, **told, check=EVIL, status="block", actions=acts)
    found = (bad, *(replace(v, **told, seconds=1e300, actions=acts) for v in others))
    report = Report(found, 1e300, -1e300)
    link.answer(RunPreflight, lambda _: Checked(0, report))
    link.answer(Act, lambda _: Acted(0, (EVIL,) * 50, bad, False))
    link.progress = [Probing(0, 10**30, -1, (EVIL,) * 200), Probing(0, -5, 0)]
    endless = (
        Stage(1e300, "load", "start", EVIL),
        Stage(1e300, "extract", "start", EVIL),
        Progress(1e300, -5, 0, -1, 10**30, -1, 1e300, 1e300, 1e300),
    )
    for event in endless:  # a float that JSON can say and no clock can show
        link.write(run.run, "events", encode(event).replace(b"1e+300", b"1e999"))
    link.happen(
        run.run,
        Note(0.0, "warning", EVIL),
        Skipped(-1e300, -1, EVIL),
        Wrote(1.0, 10**12, EVIL, 10**40, 10**40, (10**20,) * 50, 10**9, EVIL),
        Failure(2.0, error),
    )
    link.write(run.run, "output", (EVIL + "\n").encode("utf-8", "surrogatepass") * 200)
    return link


async def test_a_host_without_gpus_shows_its_cpu_and_memory_and_says_why() -> None:
    app = make_app(scenes.idle(0))
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(
            pilot,
            "no GPU  NVML is not installed: libnvidia-ml.so.1 was not found",
            "CPU",
            "of 16 cores · load 6.2",
            "memory",
            "12.4 / 31.3 GiB",
        )
        assert "GPU used" not in shown(app)


async def test_one_lost_gpu_does_not_hide_the_others() -> None:
    link = scenes.idle()
    sample = scenes.sample(scenes.NOW, 4)
    lost = Gpu(2, error="GPU is lost: it fell off the bus")
    link.samples = [replace(sample, gpus=(*sample.gpus[:2], lost, sample.gpus[3]))]
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "! GPU is lost: it fell off the bus")
        assert sum("71.2 /  95.6" in row for row in rows(app)) == 3


async def test_what_the_driver_does_not_say_is_a_dash_and_never_zero() -> None:
    link = scenes.idle()
    link.samples = [replace(scenes.sample(scenes.NOW, 1), gpus=(Gpu(0, name="NVIDIA GB10"),))]
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "1 × GB10")
        (row,) = [r for r in rows(app) if r.split()[:1] == ["0"]]
        assert row.split() == ["0", "-", "/", "-", "-", "-", "-"]


async def test_a_resize_is_drawn_at_once() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 4")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert_fits(rows(app), *size)


async def test_it_reads_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(scenes.failed())
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "✗ RUN 3", "preflight ✓", "extract ✗", "✗ RuntimeError")
        assert app.no_color
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                if style is not None and style.color is not None and style.color.triplet:
                    red, green, blue = style.color.triplet
                    assert red == green == blue


async def test_ten_thousand_runs_scroll() -> None:
    link = scenes.extracting()
    link.runs = tuple(scenes.summary(i, state="completed") for i in range(1, 10_001))
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "RUN 10000")
        await pilot.press("h")
        await sees(pilot, "10 000 runs", " 9999 ")
        await pilot.press("G")
        await until(pilot, lambda: any(r.split()[:2] == ["▸", "1"] for r in rows(app)))
        await pilot.press("pageup", "g")
        await sees(pilot, " 10000 ")


async def test_a_wide_screen_charts_every_gpu_and_names_its_holder_and_limit() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=(200, 60)) as pilot:
        await sees(pilot, "GPU busy", "GPU 0", "GPU 7", "last 30 min", "power of limit")
        await sees(pilot, "404 / 600 W", "VLLM::Worker_TP7 · pid 48220 · root · 71.2 GiB")
        before = [row for row in rows(app) if row[105:110] == "GPU 0" or "GPU 0 " in row]
        for second in range(1, 4):
            idle = scenes.sample(scenes.NOW + second, busy=False)
            link.push(Telemetry(idle))
        await sees(pilot, "nobody", "68 / 600 W")
        after = [row for row in rows(app) if "GPU 0 " in row]
        assert before != after, "a chart moves with the samples"
        assert_fits(rows(app), 200, 60)


async def test_a_host_without_gpus_charts_its_cpu() -> None:
    app = make_app(scenes.idle(0))
    async with app.run_test(size=(200, 60)) as pilot:
        await sees(pilot, "busy ", "CPU      32 %", "last 2 min")
