"""The screen over a link of 200 ms a round trip: a real sshd behind a relay that delays."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from eagle3_agent.protocol import Message, decode_event
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.messages import (
    Checked,
    Detail,
    GetRun,
    RunPreflight,
    Start,
    Started,
)
from eagle3_agent.protocol.values import RunDetail
from eagle3_console.app import ConsoleApp
from eagle3_console.archive import Archive, build_archive
from eagle3_console.link import Link
from eagle3_console.screens.history import HistoryScreen
from eagle3_console.session import Session
from support.daemon import Home
from support.links import read_all
from support.slow import Relay, relayed
from support.sshd import Sshd
from support.tui import sees, shown, until
from support.workstation import ALIAS, Workstation

pytestmark = pytest.mark.ssh

DELAY = 0.1
"""Seconds, each way."""


@dataclass
class Turns:
    """How many round trips each request had to wait for before it could be sent."""

    sent: list[tuple[str, int]] = field(default_factory=list)
    deepest: int = 0
    _of: dict[int, int] = field(default_factory=dict)

    def ask(self, number: int, message: Message) -> None:
        self._of[number] = self.deepest + 1
        self.sent.append((type(message).__name__, self.deepest + 1))

    def answered(self, number: int) -> None:
        self.deepest = max(self.deepest, self._of.get(number, 0))

    def of(self, name: str) -> list[int]:
        return [turn for kind, turn in self.sent if kind == name]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Watches what the console sends, and on which answers that waited."""
    counted = Turns()
    numbered, wait = Session._numbered, Session._ask

    def seen(session: Session, message: Message) -> tuple[int, bytes]:
        number, line = numbered(session, message)
        if type(message).__name__ != "Ping":
            counted.ask(number, message)
        return number, line

    async def asked(
        session: Session, number: int, line: bytes, name: str, timeout: float | None
    ) -> Message:
        reply = await wait(session, number, line, name, timeout)
        counted.answered(number)
        return reply

    monkeypatch.setattr(Session, "_numbered", seen)
    monkeypatch.setattr(Session, "_ask", asked)
    return counted


def archive_of(root: Path) -> Archive:
    return build_archive({str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.py")})


@dataclass
class Far:
    """The screen before a host that is far away."""

    app: ConsoleApp
    link: Link
    relay: Relay
    home: Home
    pilot: Pilot[int]

    async def detail(self, run: str) -> RunDetail:
        reply = await self.link.ask(GetRun(0, run))
        assert isinstance(reply, Detail)
        return reply.detail

    async def start(self, worker: str) -> RunDetail:
        started = await self.link.ask(Start(0, self.home.profile(worker)), None)
        assert isinstance(started, Started)
        return await self.detail(started.run)


@asynccontextmanager
async def far_away(
    make: Callable[..., Sshd], folder: Path, before: Callable[[Link, Home], Any] | None = None
) -> AsyncIterator[Far]:
    home = Home(folder / "parts")
    server = make().start()
    desk = Workstation(folder, server)
    async with relayed(server.port, DELAY) as relay:
        desk.config.write_text(
            desk.config.read_text().replace(f"Port {server.port}", f"Port {relay.port}")
        )
        kind, key = server.known_line().split()[1:3]
        desk.known_hosts.write_text(f"[127.0.0.1]:{relay.port} {kind} {key}\n")
        link = Link(desk.host(), archive=archive_of(home.root))
        try:
            await link.connect()
            if before is not None:
                await before(link, home)
            app = ConsoleApp(link, ALIAS, home.profile())
            async with app.run_test(size=(120, 40)) as pilot:
                yield Far(app, link, relay, home, pilot)
        finally:
            await link.close()


async def test_a_run_is_watched_to_its_end_without_a_lost_event(
    make: Callable[..., Sshd], tmp_path: Path
) -> None:
    async with far_away(make, tmp_path) as far:
        checked = await far.link.ask(RunPreflight(0, far.home.profile()), None)
        assert isinstance(checked, Checked)
        assert not checked.report.blocking
        run = await far.start("hold")
        folder = Path(run.folder)
        await sees(far.pilot, "RUN 1", "running")
        await until(far.pilot, lambda: far.app.state.standing.done == 1, "the first sample")
        await until(far.pilot, lambda: latency(far.app) is not None, "the latency is shown")
        assert (latency(far.app) or 0) >= 2000 * DELAY
        (folder / "go").touch()
        await sees(far.pilot, "completed")
        await until(far.pilot, lambda: far.app.state.standing.ended is not None, "the last event")
        written = (folder / "events.jsonl").read_bytes()
        expected = Standing()
        for line in written.splitlines():
            event = decode_event(line)
            assert event is not None
            expected = fold(expected, event)
        assert far.app.state.standing == expected
        assert await read_all(far.link.stream(run.summary.run, "events")) == written


def latency(app: ConsoleApp) -> int | None:
    """Milliseconds, as the header shows them."""
    found = re.search(r"● live (\d+) ms", shown(app))
    return int(found[1]) if found else None


async def test_a_key_does_not_wait_for_the_link(make: Callable[..., Sshd], tmp_path: Path) -> None:
    """With nothing coming through at all, every key still changes the screen."""
    async with far_away(make, tmp_path) as far:
        await far.start("completed")
        await sees(far.pilot, "RUN 1", "completed")
        far.relay.freeze()
        carried = far.relay.carried
        await far.pilot.press("h")
        await sees(far.pilot, "HISTORY", "1 run")
        await far.pilot.press("slash", *"zzz")
        await sees(far.pilot, "0 match zzz")
        await far.pilot.press("escape", "enter")
        await sees(far.pilot, "RUN 1  test")
        await far.pilot.press("escape")
        assert isinstance(far.app.screen, HistoryScreen)
        await far.pilot.press("question_mark")
        await sees(far.pilot, "all keys")
        assert far.app.state.live
        far.relay.thaw()
        await until(far.pilot, lambda: far.relay.carried > carried, "the link goes on")


async def test_the_dashboard_is_complete_two_round_trips_after_the_greeting(
    make: Callable[..., Sshd], tmp_path: Path, turns: Turns
) -> None:
    async def one_run(link: Link, home: Home) -> None:
        started = await link.ask(Start(0, home.profile("completed")), None)
        assert isinstance(started, Started)
        assert len(await read_all(link.stream(started.run, "events"))) > 0
        turns.sent.clear()

    async with far_away(make, tmp_path, one_run) as far:
        greeted = turns.deepest
        await sees(far.pilot, "RUN 1", "completed")
        await until(
            far.pilot,
            lambda: bool(far.app.state.detail) and far.app.state.standing.ended is not None,
            "everything of the run",
        )
        await until(far.pilot, lambda: far.app.state.host is not None, "the GPUs")
        asked = [name for name, _ in turns.sent]
        assert turns.of("ListRuns") == turns.of("WatchHost") == [greeted + 1]
        assert max(turns.of("GetRun")) == greeted + 2
        assert min(turns.of("Subscribe")) == greeted + 2
        assert sorted(asked) == ["GetRun", "ListRuns", "Subscribe", "Subscribe", "WatchHost"]
