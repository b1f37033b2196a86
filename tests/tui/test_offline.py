"""A host that cannot be reached is shown as it was last seen, plainly marked, without actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import GetRun, Start
from eagle3_agent.protocol.values import Problem
from eagle3_console.app import ConsoleApp
from eagle3_console.errors import ConsoleError
from eagle3_console.historycache import HistoryCache
from eagle3_console.remembering import Remembering
from eagle3_console.screens.base import switched_off
from eagle3_console.widgets.panel import Panel
from support import scenes
from support.fakelink import FakeLink
from support.tui import Clock, misses, sees, shown

WIDE = (120, 40)
GONE = Problem("gpu-01 cannot be reached", "no route to host", "look at the network", "connect")


async def seen_before(folder: Path) -> HistoryCache:
    """Two hours ago a console looked at the host, and opened its failed run."""
    cache = HistoryCache("root@gpu-01", folder)
    link = Remembering(scenes.failed(), cache, now=lambda: scenes.NOW - 7200)
    await link.connect()
    await link.watch()
    await link.ask(GetRun(0, "0003"))
    for stream in ("events", "output"):
        async for _ in link.stream("0003", stream):
            pass
    await link.close()
    return cache


async def gone(cache: HistoryCache) -> tuple[ConsoleApp, FakeLink]:
    real = FakeLink(now=scenes.NOW)
    real.refuse_connect = GONE
    link = Remembering(real, cache, now=Clock())
    with pytest.raises(ConsoleError):
        await link.connect()
    return ConsoleApp(link, "root@gpu-01", scenes.PROFILE, now=Clock()), real


async def test_the_history_of_a_host_that_is_gone_is_read_and_marked(tmp_path: Path) -> None:
    app, real = await gone(await seen_before(tmp_path))
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "○ offline · history of 12:02, 2 h ago", "no route to host", "RUN 3")
        await sees(pilot, "no figures of the host itself")
        assert all(p.styles.text_opacity < 1 for p in app.screen.query("GpuPanel, RunPanel"))
        assert {"start", "abort", "preflight", "act"} <= switched_off(app.state)
        await pilot.press("s")
        await sees(pilot, "There is no link to the host")
        assert not real.asked_for(Start)
        await pilot.press("h")
        await sees(pilot, "3 runs", "smollm2-demo")
        await pilot.press("enter")
        await sees(pilot, "RUN 3", "RuntimeError")
        await pilot.press("l")
        await sees(pilot, "step 199")
        await pilot.press("escape", "escape", "j", "enter")
        await sees(pilot, "RUN 2")
        assert "○ offline" in shown(app)


async def test_ctrl_r_tries_again_and_a_host_that_is_back_takes_over(tmp_path: Path) -> None:
    app, real = await gone(await seen_before(tmp_path))
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "history of 12:02")
        await pilot.press("ctrl+r")
        await sees(pilot, "history of 12:02", "RUN 3")
        back = scenes.extracting()
        real.refuse_connect, real.runs, real.samples = None, back.runs, back.samples
        real._files, real.details = back._files, back.details
        await pilot.press("ctrl+r")
        await sees(pilot, "● live", "RUN 4", "412 / 1 000")
        await misses(pilot, "history of")
        assert all(p.styles.text_opacity == 1 for p in app.screen.query(Panel))
        assert "start" not in switched_off(app.state)


async def test_two_kept_runs_can_be_compared(tmp_path: Path) -> None:
    cache = await seen_before(tmp_path)
    cache.keep_run(scenes.detail(scenes.history()[0]), scenes.NOW)
    app, _ = await gone(cache)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("d")
        await sees(pilot, "run 1 ✗ failed", "run 3 ✗ failed", "the same")
