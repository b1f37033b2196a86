"""A real run under the real agent on a real sshd, while the connection and the agent are killed.

Only the preflight's verdicts and the worker's work are stand-ins (``support.daemon``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from eagle3_agent.protocol.messages import Detail, GetRun, RunChanged, Start, Started, Telemetry
from eagle3_agent.protocol.values import RunDetail
from eagle3_console.archive import Archive, build_archive
from eagle3_console.link import Link
from eagle3_console.linkstate import LinkState, Live, Piece, Reconnecting
from support.daemon import Home
from support.links import read_all, until
from support.sshd import Sshd

from .conftest import User


def archive_of(root: Path) -> Archive:
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.py")}
    return build_archive(files)


async def detail(link: Link, run: str) -> RunDetail:
    reply = await link.ask(GetRun(0, run))
    assert isinstance(reply, Detail)
    return reply.detail


async def test_a_run_outlives_its_connection_and_its_agent(
    server: Sshd, user: User, tmp_path: Path
) -> None:
    home = Home(tmp_path / "parts")
    states: list[LinkState] = []
    pushed: list[RunChanged | Telemetry] = []
    link = Link(
        user.host(server),
        on_state=states.append,
        on_push=pushed.append,
        archive=archive_of(home.root),
    )
    await link.connect()
    await link.watch(host_interval=0)
    started = await link.ask(Start(0, home.profile("chatty")))
    assert isinstance(started, Started)
    folder = Path((await detail(link, started.run)).folder)
    kills = 0

    def losses() -> int:
        return sum(isinstance(state, Reconnecting) and state.attempt == 1 for state in states)

    async def cut(piece: Piece) -> None:
        nonlocal kills
        if piece.offset + len(piece.data) > 1_000_000 * (kills + 1) and kills < 3:
            kills += 1
            await until(lambda: isinstance(link.state, Live), "the link is up")
            state = link.state
            assert isinstance(state, Live)
            if kills == 3:
                (folder / "go").touch()
            server.signal_sessions(signal.SIGKILL)
            if kills == 2:
                os.kill(state.welcome.pid, signal.SIGKILL)
            await until(lambda: losses() == kills, "the loss is noticed")

    output, events = await asyncio.wait_for(
        asyncio.gather(
            read_all(link.stream(started.run, "output"), cut),
            read_all(link.stream(started.run, "events")),
        ),
        90,
    )
    assert kills == 3
    assert output == (folder / "output.log").read_bytes()
    assert len(output) > 4_000_000
    assert events == (folder / "events.jsonl").read_bytes()
    summary = (await detail(link, started.run)).summary
    assert summary.state == "completed"
    assert summary.samples.done == summary.samples.total == 3
    await until(
        lambda: any(isinstance(m, RunChanged) and m.summary.state == "completed" for m in pushed),
        "the end is pushed",
    )
    await link.close()
