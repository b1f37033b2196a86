"""A host that was seen once and is gone: its history on a real terminal, and by command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import Start, Started
from eagle3_console.link import Link
from support.daemon import Home
from support.links import read_all
from support.tmux import Screen, require_tmux
from support.workstation import ALIAS, Workstation

from .test_slow_link import archive_of

pytestmark = pytest.mark.ssh


@pytest.fixture
def screens(desk: Workstation) -> Iterator[list[Screen]]:
    require_tmux()
    opened: list[Screen] = []
    yield opened
    for one in opened:
        one.close()


def connect(desk: Workstation, screens: list[Screen]) -> Screen:
    folder = desk.folder / f"screen-{len(screens)}"
    folder.mkdir()
    argv = [sys.executable, "-m", "eagle3_console.cli", "connect", ALIAS]
    screens.append(Screen(folder, argv, desk.env, 120, 40))
    return screens[-1]


async def one_run(desk: Workstation, folder: Path) -> None:
    """By a link of this process, with a stand-in for the model's work."""
    home = Home(folder / "parts")
    link = Link(desk.host(), archive=archive_of(home.root))
    try:
        await link.connect()
        started = await link.ask(Start(0, home.profile("completed")), None)
        assert isinstance(started, Started)
        assert await read_all(link.stream(started.run, "events"))
    finally:
        await link.close()


async def test_a_host_that_is_gone_is_shown_as_it_was(
    desk: Workstation, screens: list[Screen], tmp_path: Path
) -> None:
    await one_run(desk, tmp_path)
    shown = connect(desk, screens)
    shown.shows("● live", 60)
    shown.shows("RUN 1 ")
    shown.press("q")
    assert shown.exit_status() == 0
    desk.server.stop()

    shown = connect(desk, screens)
    shown.shows(r"○ offline · history of .*, just now", 60)
    shown.shows("RUN 1 .*completed")
    shown.press("h")
    shown.shows(r"HISTORY +1 run · 1 completed")
    shown.press("Enter")
    shown.shows("RUN 1 +test")
    shown.press("q")
    assert shown.exit_status() == 0

    listed = desk.run("runs", ALIAS, "--offline", "--json")
    assert [run["state"] for run in listed.object["runs"]] == ["completed"]
    assert "offline, history of" in listed.err
    found = desk.run("show", ALIAS, "last", "--offline", "--json").object
    assert (found["state"], found["samples"]["done"]) == ("completed", 3)
    assert desk.run("runs", ALIAS).code == 3
