"""The TUI on a real terminal before a real sshd: connect, start, lose the link, abort, leave."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import tiny
from support.local import job
from support.tmux import Screen, require_tmux
from support.workstation import ALIAS, Workstation

pytestmark = [pytest.mark.ssh, pytest.mark.worker]

Open = Callable[..., Screen]


@pytest.fixture
def screen(stranger: Workstation) -> Iterator[Open]:
    """Opens ``connect`` on a terminal of the given size."""
    require_tmux()
    opened: list[Screen] = []

    def connect(*arguments: str, columns: int = 80, rows: int = 24) -> Screen:
        folder = stranger.folder / f"screen-{len(opened)}"
        folder.mkdir()
        argv = [sys.executable, "-m", "eagle3_console.cli", "connect", ALIAS, *arguments]
        opened.append(Screen(folder, argv, stranger.env, columns, rows))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


@pytest.fixture
def long(stranger: Workstation, worker_python: Path, tiny_model: Path) -> str:
    """A profile that takes longer than the test looks at it."""
    data = tiny.write_jsonl(stranger.folder / "rows.jsonl", tiny.rows(20_000))
    return stranger.profile("long", **job(worker_python, tiny_model, data, stranger.folder / "out"))


def test_no_is_the_answer_to_an_unknown_key(stranger: Workstation, screen: Open) -> None:
    shown = screen()
    asked = shown.shows(r"Do you trust this key\? \[y/N\]")
    assert "SHA256:" in asked
    shown.press("Enter")
    shown.shows(r"The host key of \S+ is not known")
    assert shown.exit_status() == 3
    assert not stranger.known_hosts.exists()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_a_run_from_the_first_key_to_the_last(
    stranger: Workstation, screen: Open, long: str, columns: int, rows: int
) -> None:
    shown = screen("-p", long, columns=columns, rows=rows)
    shown.shows(r"Do you trust this key\?")
    shown.press("y", "Enter")
    shown.shows("● live")
    shown.shows("s checks the host and starts it")
    assert stranger.server.known_line().strip() in stranger.known_hosts.read_text()

    shown.press("s")
    shown.shows("Check and start")
    shown.press("y")
    shown.shows(r"RUN 1 +long .* running", 60)
    shown.shows(r"[1-9][\d ]* / 20 000 samples", 60)
    shown.shows("ETA")

    daemon = stranger.daemon()
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    stranger.server.signal_sessions(signal.SIGKILL)
    lost = shown.shows("◐ reconnecting")
    assert "runs on the host go on" in lost
    shown.shows("● live .*✓ caught up", 60)

    shown.press("a")
    shown.shows(r"Abort run 1\?")
    shown.press("n")
    shown.shows(r"▶ RUN 1")
    shown.press("h")
    shown.shows(r"HISTORY +1 run · 1 running")
    shown.press("l")
    shown.shows(r"LOG +run 1 +long")
    shown.press("Escape")
    shown.press("Escape")
    shown.shows(r"▶ RUN 1")
    shown.press("a")
    shown.shows(r"Abort run 1\?")
    shown.press("y")
    shown.shows("aborted on request", 60)

    for line in shown.text().splitlines():
        assert len(line) <= columns
    shown.press("q")
    assert shown.exit_status() == 0
