"""SVG snapshots of the screens in their main states; ``--snapshot-update`` renews them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from eagle3_agent.protocol.messages import Checked, Probing, RunChanged, RunPreflight
from eagle3_agent.protocol.values import Problem
from eagle3_console.app import ConsoleApp
from eagle3_console.linkstate import Reconnecting
from eagle3_console.screens.log import LogScreen
from eagle3_console.screens.pages import RunReading
from support import scenes, verdicts
from support.fakelink import FakeLink
from support.recording import host_at, moment, recorded
from support.tui import Clock, make_app, reads, sees, until

Compare = Callable[..., bool]
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}
THEMES = ("eagle-dark", "eagle-light")


def blocked() -> FakeLink:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, scenes.blocked_report()))
    return link


def offering() -> FakeLink:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.many(scenes.NOW - 1)))
    return link


def stalled() -> FakeLink:
    """The scene of ``extracting``, 150 s after its last event; no GPU has done anything since."""
    link = scenes.extracting()
    idle = [scenes.sample(scenes.NOW + s, busy=False) for s in range(5, 151, 5)]
    link.samples = [*link.samples, *idle]
    link.welcome = replace(link.welcome, now=scenes.NOW + 150)
    return link


def extracting_h200() -> FakeLink:
    return host_at(moment("0001", after_extract=20.0))


def killed_rank() -> FakeLink:
    return host_at(recorded("0002").exit.ended + 1)


def after_all_runs() -> FakeLink:
    return host_at(recorded("0004").exit.ended + 30)


#: name -> (the host, keys to press, what the state must hold before the picture)
STATES: dict[str, tuple[Callable[[], FakeLink], Sequence[str]]] = {
    "dashboard-extracting": (scenes.extracting, ()),
    "dashboard-disk-bound": (lambda: scenes.extracting(2, disk=True), ()),
    "dashboard-loading": (scenes.loading, ()),
    "dashboard-stalled": (stalled, ()),
    "dashboard-failed": (scenes.failed, ()),
    "preflight-blocked": (blocked, ("p",)),
    "preflight-thirty": (offering, ("p",)),
    "h200-extracting": (extracting_h200, ()),
    "history": (after_all_runs, ("h", "down", "down")),
    "errors": (killed_rank, ("e",)),
    "log": (scenes.extracting, ("l",)),
}
#: One size and theme is enough for what does not depend on them much.
ONCE: dict[str, tuple[Callable[[], FakeLink], Sequence[str]]] = {
    "dashboard-no-gpu": (lambda: scenes.idle(0), ()),
    "dashboard-one-gpu": (lambda: scenes.extracting(1), ()),
    "dashboard-sixteen-gpus": (lambda: scenes.extracting(16), ()),
    "run": (scenes.extracting, ("h", "down", "enter")),
    "run-extracting": (scenes.extracting, ("h", "enter")),
    "h200-loading": (lambda: host_at(moment("0002", after_extract=-25.0)), ()),
    "h200-failed": (killed_rank, ()),
    "log-at-the-error": (killed_rank, ("e", "l")),
    "profile": (scenes.extracting, ("f",)),
    "help": (scenes.extracting, ("question_mark",)),
    "abort": (scenes.extracting, ("a",)),
    "preflight-action": (offering, ("p", "1")),
    "preflight-unfolded": (offering, ("p", "space")),
}


def picture(
    compare: Compare, link: FakeLink, keys: Sequence[str], size: tuple[int, int], theme: str
) -> bool:
    app = make_app(link, clock=Clock(link.welcome.now))
    app.theme = theme

    async def before(pilot: Pilot[Any]) -> None:
        await settled(pilot, link)
        for key in keys:
            await pilot.press(key)
            await settled(pilot, link)

    return compare(app, terminal_size=size, run_before=before)


async def settled(pilot: Pilot[Any], link: FakeLink) -> None:
    """Everything that the host has to say is on the screen."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)

    def heard() -> bool:
        state = app.state
        known = state.runs_known and state.host is not None and state.checks.since is None
        told = not link.runs or (state.detail is not None and bool(state.tail))
        return known and told and not reads(app)

    await until(pilot, heard)
    if isinstance(app.screen, LogScreen):
        log = app.screen
        await until(pilot, lambda: len(log.buffer) > 0 and not log.flushing)
    if isinstance(app.screen, RunReading):
        reading = app.screen
        await until(pilot, lambda: reading.standing(app.state) is not None)
        await until(pilot, lambda: not reads(app))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STATES)
def test_screen(name: str, size: str, theme: str, snap_compare: Compare) -> None:
    make, keys = STATES[name]
    assert picture(snap_compare, make(), keys, SIZES[size], theme)


@pytest.mark.parametrize("name", ONCE)
def test_state(name: str, snap_compare: Compare) -> None:
    make, keys = ONCE[name]
    size = (80, 24) if name == "dashboard-sixteen-gpus" else (120, 40)
    assert picture(snap_compare, make(), keys, size, "eagle-dark")


@pytest.mark.parametrize("name", ["dashboard-stalled", "history", "preflight-blocked"])
def test_high_contrast(snap_compare: Compare, name: str) -> None:
    make, keys = STATES[name]
    assert picture(snap_compare, make(), keys, (120, 40), "eagle-contrast")


def test_the_end_of_a_run_on_the_smallest_screen(snap_compare: Compare) -> None:
    """The toast stands over the events: neither the keys nor the run's lines are hidden."""
    link = scenes.extracting()
    app = make_app(link)
    cause = "rank 3 ran out of GPU memory: CUDA out of memory, tried to allocate 2.0 GiB"

    async def before(pilot: Pilot[Any]) -> None:
        await settled(pilot, link)
        ended = scenes.summary(4, state="failed", ended=scenes.NOW, cause=cause)
        link.push(RunChanged(ended))
        await sees(pilot, "Run 4 failed after 31:11", "rank 3 ran out")
        await settled(pilot, link)

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("theme", THEMES)
def test_deep_preflight_under_way(snap_compare: Compare, theme: str) -> None:
    link = offering()
    app = make_app(link)
    app.theme = theme

    async def before(pilot: Pilot[Any]) -> None:
        await settled(pilot, link)
        await pilot.press("p")
        await settled(pilot, link)
        link.progress = [Probing(0, 14, 22, ("nccl", "disk-throughput", "tiny-engine"))]
        link.held[RunPreflight] = asyncio.Event()
        await pilot.press("D")
        await until(pilot, lambda: app.state.checks.probing is not None)

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


def test_link_lost(snap_compare: Compare) -> None:
    link = scenes.extracting()
    app = make_app(link)
    why = Problem("The link was lost", "no answer from gpu-01 for 8 s", "it is tried again")

    async def before(pilot: Pilot[Any]) -> None:
        await settled(pilot, link)
        link.move(Reconnecting(3, scenes.NOW + 4, scenes.NOW - 9, why))
        await until(pilot, lambda: not app.state.live)

    assert snap_compare(app, terminal_size=(120, 40), run_before=before)


def test_the_pictures_in_the_docs_show_what_the_screens_show_now() -> None:
    script = Path(__file__).parents[2] / "docs" / "make_screenshots.py"
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
