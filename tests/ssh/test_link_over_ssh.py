"""A link over a real sshd that is cut and frozen, with the small agent and with the real one."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import AgentStatus, Status, StopAgent, Telemetry
from eagle3_console.archive import agent_archive
from eagle3_console.link import Link
from eagle3_console.linkstate import LinkState, Live, Offline, Piece, Reconnecting
from eagle3_console.local import LocalHost
from support.links import FakeRun, fake_archive, linked, noise, read_all, until
from support.sshd import Sshd, make_key, stop_daemons

from .conftest import User


async def test_a_stream_survives_the_death_of_its_connection(server: Sshd, user: User) -> None:
    data = noise(600_000, 7)
    run = FakeRun(server.home / "e3")
    run.append(data[:200_000])
    states: list[LinkState] = []
    async with linked(user.host(server), fake_archive(), states) as link:
        cuts = [200_000, 400_000]

        async def each(piece: Piece) -> None:
            if cuts and piece.offset + len(piece.data) >= cuts[0]:
                start = cuts.pop(0)
                server.signal_sessions(signal.SIGKILL)
                run.append(data[start : start + 200_000])
                if not cuts:
                    run.end()

        got = await asyncio.wait_for(read_all(link.stream("0001", "output"), each), 60)
    assert got == data
    assert any(isinstance(state, Reconnecting) for state in states)
    # one exec to look, one to install, one for each time that it came back
    assert server.execs() == 4


async def test_a_frozen_sshd_is_noticed_within_ten_seconds(server: Sshd, user: User) -> None:
    states: list[LinkState] = []
    async with linked(user.host(server), fake_archive(), states) as link:
        frozen = server.sessions()
        server.signal_sessions(signal.SIGSTOP)
        began = time.monotonic()
        await until(lambda: any(isinstance(s, Reconnecting) for s in states), "the freeze", 10)
        assert time.monotonic() - began > 3
        await until(lambda: isinstance(link.state, Live), "the link is back")
        assert isinstance(await link.ask(AgentStatus(0)), Status)
        assert set(server.sessions()) > set(frozen)
        server.signal_sessions(signal.SIGCONT)


async def test_a_key_that_changes_under_a_link_ends_it(server: Sshd, user: User) -> None:
    states: list[LinkState] = []
    async with linked(user.host(server), fake_archive(), states) as link:
        server.stop()
        server.host_key.unlink()
        server.host_key.with_suffix(".pub").unlink()
        make_key(server.host_key)
        server.start()
        await until(lambda: isinstance(link.state, Offline), "the refusal")
        assert isinstance(link.state, Offline)
        assert "has changed" in link.state.why.title
        assert f"{user.known_hosts}:1" in link.state.why.happened


async def test_a_server_that_is_away_for_a_while(server: Sshd, user: User) -> None:
    states: list[LinkState] = []
    async with linked(user.host(server), fake_archive(), states) as link:
        server.stop()
        await until(lambda: any(isinstance(s, Reconnecting) and s.attempt > 1 for s in states), "2")
        last = [s for s in states if isinstance(s, Reconnecting)][-1]
        assert "refuses connections" in last.why.title
        server.start()
        assert isinstance(await link.ask(AgentStatus(0)), Status)


# ---------------------------------------------------------------------- the real agent


async def test_the_real_agent_from_nothing(server: Sshd, user: User) -> None:
    seen: list[object] = []
    link = Link(user.host(server), on_push=seen.append)
    welcome = await link.connect()
    assert welcome.archive == agent_archive().name
    assert server.execs() == 2
    assert not link.agent_outdated
    assert link.warnings == ()
    assert await link.watch(host_interval=0.2) == ()
    await until(lambda: any(isinstance(m, Telemetry) for m in seen), "telemetry")
    await link.close()
    again = Link(user.host(server))
    second = await again.connect()
    assert server.execs() == 3
    # the same daemon: it outlives the connection that started it
    assert (second.pid, second.started) == (welcome.pid, welcome.started)
    await again.close()


async def test_the_real_agent_is_started_again_when_killed(server: Sshd, user: User) -> None:
    async with linked(user.host(server)) as link:
        state = link.state
        assert isinstance(state, Live)
        first = state.welcome.pid
        os.kill(first, signal.SIGKILL)
        await until(
            lambda: isinstance(link.state, Live) and link.state.welcome.pid != first,
            "another agent",
        )
        status = await link.ask(AgentStatus(0))
        assert isinstance(status, Status)
        assert status.pid != first


async def test_the_real_agent_leaves_when_asked(server: Sshd, user: User) -> None:
    async with linked(user.host(server)) as link:
        state = link.state
        assert isinstance(state, Live)
        await link.ask(StopAgent(0))
        await until(
            lambda: isinstance(link.state, Live) and link.state.welcome.pid != state.welcome.pid,
            "a fresh agent",
        )


async def test_a_state_folder_that_is_in_the_way(server: Sshd, user: User) -> None:
    state = server.home / "e3" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("not a folder")
    link = Link(user.host(server))
    with pytest.raises(Exception, match="could not be started") as caught:
        await link.connect()
    assert str(state) in caught.value.problem.happened  # type: ignore[attr-defined]
    await link.close()


async def test_the_real_agent_on_this_machine(tmp_path: Path) -> None:
    seen: list[object] = []
    link = Link(LocalHost({**os.environ, "EAGLE3_HOME": str(tmp_path)}), on_push=seen.append)
    try:
        welcome = await link.connect()
        assert welcome.archive == agent_archive().name
        await link.watch(host_interval=0.2)
        await until(lambda: any(isinstance(m, Telemetry) for m in seen), "telemetry")
    finally:
        await link.close()
        stop_daemons(tmp_path)
