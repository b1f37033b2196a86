"""The link's state is always in sight, and old figures are never passed off as live."""

from __future__ import annotations

from dataclasses import replace

from eagle3_agent.protocol.events import Progress
from eagle3_agent.protocol.messages import Start, Telemetry
from eagle3_agent.protocol.values import Problem
from eagle3_console.app import ConsoleApp
from eagle3_console.linkstate import Connecting, Live, Offline, Reconnecting
from eagle3_console.widgets.panel import Panel
from support import scenes
from support.fakelink import FakeLink
from support.tui import Clock, make_app, misses, rows, sees, until

WIDE = (120, 40)
NOW = scenes.NOW
LOST = Problem("The link was lost", "no answer from gpu-01 for 8 s", "it is tried again by itself")


def dimmed(app: ConsoleApp) -> bool:
    return all(p.styles.text_opacity < 1 for p in app.screen.query("GpuPanel, RunPanel"))


async def test_a_lost_link_dims_what_is_shown_and_says_from_when_it_is() -> None:
    link, clock = scenes.extracting(), Clock()
    app = make_app(link, clock=clock)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "● live 24 ms", "RUN 4")
        assert not dimmed(app)
        clock.t += 8
        link.move(Reconnecting(3, clock.t + 4, NOW + 1, LOST))
        await sees(
            pilot,
            "◐ reconnecting (3) next in 4 s · showing 14:02:11",
            "no answer from gpu-01 for 8 s",
            "it is tried again by itself",
            "runs on the host go on",
            "412 / 1 000 samples",
        )
        assert dimmed(app)


async def test_a_link_that_is_back_says_when_it_has_caught_up() -> None:
    link, clock = scenes.extracting(), Clock()
    app = make_app(link, clock=clock)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        link.move(Reconnecting(1, NOW + 1, NOW, LOST))
        await sees(pilot, "reconnecting (1)")
        step = Progress(NOW, 640, 1000, 0, 2_900_000, 10**10, 2280.0, 10.0, eta=600.0)
        link.happen("0004", step)
        clock.t += 20
        link.move(Live(0.031, link.welcome))
        await sees(pilot, "640 / 1 000 samples", "catching up")
        link.push(Telemetry(scenes.sample(clock.t)))
        await sees(pilot, "● live 31 ms", "✓ caught up 14:02:31")
        await misses(pilot, "no answer from gpu-01")
        assert not dimmed(app)
        clock.t += 60
        link.push(Telemetry(scenes.sample(clock.t)))
        await misses(pilot, "caught up")


async def test_offline_says_since_when_and_what_to_do_and_can_be_tried_again() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        why = Problem("Login refused", "gpu-01 no longer takes this key", "ask for access")
        link.move(Offline(NOW, why))
        await sees(pilot, "○ offline since 14:02:11", "no longer takes this key", "ask for access")
        await pilot.press("s")
        await sees(pilot, "There is no link to the host")
        assert link.asked_for(Start) == []
        await pilot.press("ctrl+r")
        await sees(pilot, "● live")
        await misses(pilot, "offline since")


async def test_a_first_connect_that_fails_is_explained() -> None:
    link = FakeLink(now=NOW)
    link.refuse_connect = Problem("No such host", "gpu-99 has no address", "check the name")
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "offline since", "gpu-99 has no address", "check the name")


async def test_while_connecting_the_step_is_shown() -> None:
    link = FakeLink()
    link.gate.clear()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        link.move(Connecting("shipping the agent, 310 KB"))
        await sees(pilot, "◐ connecting · shipping the agent, 310 KB")


async def test_panels_ask_for_nothing_new_when_nothing_changed() -> None:
    """What keeps an idle console quiet: the same state draws no row again."""
    link = scenes.idle()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run on this host yet")
        await pilot.pause()
        drawn: list[str] = []
        for panel in app.screen.query(Panel):
            name = type(panel).__name__
            panel.refresh = lambda *a, n=name, **k: drawn.append(n)  # type: ignore[assignment]
        app.state = replace(app.state, shown_at=NOW + 1)
        await pilot.pause()
        assert drawn == []
        app.state = replace(app.state, now=app.state.now + 1)
        await until(pilot, lambda: drawn == ["Header"], "only the clock's row")


async def test_simulated_gpus_are_labelled() -> None:
    link = scenes.idle()
    fake = tuple(replace(g, name="SIMULATED NVIDIA H200") for g in scenes.sample(NOW).gpus)
    link.samples = [replace(scenes.sample(NOW), gpus=fake)]
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "SIMULATED GPUs")
        assert "SIMULATED GPUs" in rows(app)[0]
