"""Driving the TUI in tests: an app over a fake link, what its screen shows, waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from eagle3_agent.protocol.values import Profile
from eagle3_console.app import ConsoleApp

from . import scenes
from .fakelink import FakeLink

#: Seconds after which a condition that did not come true fails the test.
PATIENCE = 30.0
#: Groups of workers that end when they have read what there is.
_READS = ("recall", "detail", "log")


class Clock:
    """The workstation's time, moved by hand."""

    def __init__(self, t: float = scenes.NOW) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


def make_app(
    link: FakeLink,
    target: str = "root@gpu-01",
    *,
    profile: Profile | None = scenes.PROFILE,
    read_only: bool = False,
    clock: Clock | None = None,
) -> ConsoleApp:
    path = None if profile is None else Path(f"/home/me/profiles/{profile.name}.toml")
    return ConsoleApp(link, target, profile, path, read_only, now=clock or Clock())


def rows(app: ConsoleApp) -> list[str]:
    """What stands on the screen, row by row."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def shown(app: ConsoleApp) -> str:
    return "\n".join(rows(app))


def reads(app: ConsoleApp) -> bool:
    """Whether something is still read from the host that comes to an end by itself."""
    return any(w.group in _READS and not w.is_finished for w in app.workers)


async def until(pilot: Pilot[int], condition: Callable[[], bool], what: str = "") -> None:
    """Wait until ``condition`` holds; fails with the screen's text when it never does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        await pilot.pause()
        if condition():
            return
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        assert loop.time() < deadline, f"{what or 'the condition'} never held:\n{shown(app)}"
        await asyncio.wait({asyncio.ensure_future(pilot.pause(0.01))})


async def sees(pilot: Pilot[int], *texts: str) -> None:
    """Wait until all the texts stand on the screen."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await until(pilot, lambda: all(t in shown(app) for t in texts), f"seeing {texts}")


async def misses(pilot: Pilot[int], *texts: str) -> None:
    """Wait until none of the texts stands on the screen."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await until(pilot, lambda: not any(t in shown(app) for t in texts), f"no longer {texts}")
