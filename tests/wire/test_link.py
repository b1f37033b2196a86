"""The link over a local fake agent: states, replies, streams, losses."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from eagle3_agent.protocol import VERSION
from eagle3_agent.protocol.messages import (
    Abort,
    AgentStatus,
    Checked,
    Chunk,
    GetCompat,
    GetRun,
    Probing,
    RunChanged,
    RunPreflight,
    Status,
    StopAgent,
    Telemetry,
)
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    HostSection,
    ModelSection,
    OutputSection,
    Problem,
    Profile,
)
from eagle3_console import session as session_module
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.hosts import Refused
from eagle3_console.link import Link, _piece, backoff
from eagle3_console.linkstate import Connecting, LinkState, Live, Offline, Piece, Reconnecting
from eagle3_console.local import LocalHost
from support.links import (
    CountingHost,
    FakeRun,
    fake_archive,
    linked,
    local_host,
    noise,
    read_all,
    set_knobs,
    until,
)

PROFILE = Profile(
    "p",
    HostSection("/usr/bin/python3"),
    ModelSection("/m"),
    CaptureSection((1,)),
    DataSection("/d"),
    OutputSection("/o"),
)


async def test_first_contact_takes_two_execs_and_the_next_one(tmp_path: Path) -> None:
    host = local_host(tmp_path)
    states: list[LinkState] = []
    async with linked(host, fake_archive(), states) as link:
        assert host.execs == 2
        assert isinstance(link.state, Live)
        assert not link.agent_outdated
        assert Connecting("Sending the agent") in states
    again = local_host(tmp_path)
    async with linked(again, fake_archive()):
        assert again.execs == 1
    assert isinstance(link.state, Offline)


async def test_latency_is_measured(tmp_path: Path) -> None:
    states: list[LinkState] = []
    async with linked(local_host(tmp_path), fake_archive(), states):
        await until(
            lambda: any(isinstance(s, Live) and s.latency is not None for s in states), "a ping"
        )


async def test_an_agent_of_another_archive_is_said_and_serves(tmp_path: Path) -> None:
    set_knobs(tmp_path, archive="0123456789abcdef")
    async with linked(local_host(tmp_path), fake_archive()) as link:
        assert link.agent_outdated
        assert isinstance(await link.ask(AgentStatus(0)), Status)


async def test_another_protocol_version_is_refused(tmp_path: Path) -> None:
    set_knobs(tmp_path, version=VERSION + 1)
    link = Link(local_host(tmp_path), archive=fake_archive())
    with pytest.raises(ConsoleError) as caught:
        await link.connect()
    assert caught.value.exit_code is ExitCode.CONNECT
    assert f"speaks {VERSION + 1}, this console {VERSION}" in caught.value.problem.happened
    assert "Upgrade the console" in caught.value.problem.todo
    await link.close()


async def test_an_agent_that_dies_is_repaired_once_then_named(tmp_path: Path) -> None:
    set_knobs(tmp_path, die=True)
    host = local_host(tmp_path)
    link = Link(host, archive=fake_archive())
    with pytest.raises(ConsoleError) as caught:
        await link.connect()
    assert "ImportError: no module named nothing" in caught.value.problem.happened
    assert isinstance(link.state, Offline)
    # found nothing, sent it; a second try finds the folder and replaces it
    assert host.execs == 2
    with pytest.raises(ConsoleError):
        await link.connect()
    assert host.execs == 4
    await link.close()


async def test_a_damaged_agent_is_replaced(tmp_path: Path) -> None:
    archive = fake_archive()
    async with linked(local_host(tmp_path), archive):
        pass
    folder = tmp_path / "cache" / "agent" / archive.name
    (folder / "eagle3_agent" / "protocol" / "codec.py").unlink()
    host = local_host(tmp_path)
    async with linked(host, archive):
        assert host.execs == 2
    assert (folder / "eagle3_agent" / "protocol" / "codec.py").is_file()
    assert [entry.name for entry in folder.parent.iterdir()] == [archive.name]


async def test_the_agents_own_problem_is_shown(tmp_path: Path) -> None:
    problem = {"title": "No socket", "happened": "it \x1b[31mbroke", "todo": "mend it", "code": "x"}
    set_knobs(tmp_path, problem={**problem, "code": "failed"})
    link = Link(local_host(tmp_path), archive=fake_archive())
    with pytest.raises(ConsoleError) as caught:
        await link.connect()
    assert caught.value.problem == Problem("local: No socket", "it [31mbroke", "mend it", "connect")
    await link.close()


async def test_a_refusal_is_an_error_with_the_agents_words(tmp_path: Path) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        with pytest.raises(ConsoleError) as caught:
            await link.ask(GetRun(0, "0001"))
        assert caught.value.problem == Problem("No", "not here", "go on", "not-found")
        assert isinstance(await link.ask(AgentStatus(0)), Status)


async def test_no_answer_in_time(tmp_path: Path) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        with pytest.raises(ConsoleError) as caught:
            await link.ask(GetCompat(0, PROFILE), timeout=0.2)
        assert "did not answer in time" in caught.value.problem.title


async def test_a_request_lost_on_the_way_is_said_to_be_unknown(tmp_path: Path) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        with pytest.raises(ConsoleError) as caught:
            await link.ask(Abort(0, "0001"))
        assert "whether it was done is not known" in caught.value.problem.happened
        # and the next question waits for the link to come back
        assert isinstance(await link.ask(AgentStatus(0)), Status)


async def test_a_line_without_end_ends_the_session_not_the_memory(tmp_path: Path) -> None:
    states: list[LinkState] = []
    async with linked(local_host(tmp_path), fake_archive(), states) as link:
        with pytest.raises(ConsoleError):
            await link.ask(StopAgent(0), timeout=20)
        await until(lambda: any(isinstance(s, Reconnecting) for s in states), "the loss")
        why = next(s for s in states if isinstance(s, Reconnecting)).why
        assert "not the protocol" in why.title
        await until(lambda: isinstance(link.state, Live), "the link is back")


async def test_a_home_that_is_not_set(tmp_path: Path) -> None:
    # a daemon's environment: neither HOME nor a locale; the password database knows the home
    env = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "a b")}
    host = CountingHost(LocalHost(env))
    link = Link(host, archive=fake_archive())
    with pytest.raises(ConsoleError) as caught:
        await link.connect()
    # the small agent wants EAGLE3_HOME; it was found, shipped and started all the same
    assert "KeyError: 'EAGLE3_HOME'" in caught.value.problem.happened
    assert (tmp_path / "a b" / "eagle3" / "agent" / fake_archive().name / "ARCHIVE").is_file()
    await link.close()


async def test_watch_is_renewed_and_every_run_told_again(tmp_path: Path) -> None:
    pushed: list[RunChanged | Telemetry] = []
    host = local_host(tmp_path)
    link = Link(host, on_push=pushed.append, archive=fake_archive())
    await link.connect()
    runs = await link.watch()
    assert [run.run for run in runs] == ["0001"]
    await until(lambda: any(isinstance(m, Telemetry) for m in pushed), "telemetry")
    assert not any(isinstance(m, RunChanged) for m in pushed)
    pushed.clear()
    await _kill_agent(link)
    await until(lambda: any(isinstance(m, RunChanged) for m in pushed), "the runs again")
    await until(lambda: any(isinstance(m, Telemetry) for m in pushed), "telemetry again")
    await link.close()


async def test_telemetry_stops_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    pushed: list[RunChanged | Telemetry] = []
    link = Link(local_host(tmp_path), on_push=pushed.append, archive=fake_archive())
    await link.connect()
    await link.watch(host_interval=1)
    await until(lambda: len(pushed) == 1, "telemetry")
    await link.watch(host_interval=0)
    await _kill_agent(link)
    await until(lambda: any(isinstance(m, RunChanged) for m in pushed), "the runs again")
    assert sum(isinstance(m, Telemetry) for m in pushed) == 1
    await link.close()


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (Chunk.of(1, 11, b"x", True), "gap"),
        (Chunk.of(1, -1, b"x", True), "gap"),
        (Chunk(1, 10, "&", True), "cannot be read"),
        (Chunk(1, 10, "\u0660", True), "cannot be read"),
    ],
)
def test_a_chunk_that_does_not_fit(chunk: Chunk, said: str) -> None:
    with pytest.raises(ConsoleError) as caught:
        _piece(chunk, 10)
    assert said in caught.value.problem.title


def test_what_is_already_there_is_cut_off() -> None:
    assert _piece(Chunk.of(1, 7, b"789abc", False), 10) == Piece(10, b"abc", False, False)
    assert _piece(Chunk.of(1, 0, b"0", True, True), 10) == Piece(10, b"", True, True)


async def _kill_agent(link: Link) -> None:
    state = link.state
    assert isinstance(state, Live)
    os.kill(state.welcome.pid, signal.SIGKILL)
    await until(lambda: link.state is not state and not isinstance(link.state, Live), "the loss")


async def test_a_stream_has_no_gap_and_no_repeat_over_three_losses(tmp_path: Path) -> None:
    data = noise(400_000, 3)
    run = FakeRun(tmp_path)
    run.append(data[:100_000])
    async with linked(local_host(tmp_path), fake_archive()) as link:
        cuts = [100_000, 200_000, 300_000]

        async def each(piece: Piece) -> None:
            if cuts and piece.offset + len(piece.data) >= cuts[0]:
                start = cuts.pop(0)
                state = link.state
                if isinstance(state, Live):
                    os.kill(state.welcome.pid, signal.SIGKILL)
                run.append(data[start : start + 100_000])
                if not cuts:
                    run.end()

        got = await asyncio.wait_for(read_all(link.stream("0001", "output"), each), 60)
    assert got == data


async def test_a_stream_starts_where_it_is_told(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    run.append(b"0123456789")
    run.end()
    async with linked(local_host(tmp_path), fake_archive()) as link:
        assert await read_all(link.stream("0001", "output", 7)) == b"789"


async def test_a_slow_reader_holds_little_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "FEED_BYTES", 100_000)
    data = noise(3_000_000, 5)
    run = FakeRun(tmp_path)
    run.append(data)
    run.end()
    set_knobs(tmp_path, chunk=50_000)
    async with linked(local_host(tmp_path), fake_archive()) as link:

        async def each(piece: Piece) -> None:
            # a question inside the loop must not wait for the queue that this loop empties
            assert isinstance(await link.ask(AgentStatus(0), timeout=10), Status)

        got = await asyncio.wait_for(read_all(link.stream("0001", "output"), each), 60)
    assert got == data


async def test_a_silent_agent_is_noticed_within_ten_seconds(tmp_path: Path) -> None:
    states: list[LinkState] = []
    async with linked(local_host(tmp_path), fake_archive(), states) as link:
        state = link.state
        assert isinstance(state, Live)
        os.kill(state.welcome.pid, signal.SIGSTOP)
        began = time.monotonic()
        await until(lambda: any(isinstance(s, Reconnecting) for s in states), "silence", 10)
        assert time.monotonic() - began > 4
        why = next(s for s in states if isinstance(s, Reconnecting)).why
        assert "fell silent" in why.title
        await until(lambda: isinstance(link.state, Live), "the link is back")


async def test_it_retries_until_it_is_refused(tmp_path: Path) -> None:
    host = local_host(tmp_path)
    states: list[LinkState] = []
    async with linked(host, fake_archive(), states) as link:
        host.refuse = ConsoleError(Problem("Away", "no network", "wait", "connect"))
        await _kill_agent(link)
        await until(
            lambda: any(isinstance(s, Reconnecting) and s.attempt == 2 for s in states), "2"
        )
        second = next(s for s in states if isinstance(s, Reconnecting) and s.attempt == 2)
        first = next(s for s in states if isinstance(s, Reconnecting))
        assert second.why.title == "Away"
        assert second.since == first.since
        assert second.next_at > first.next_at
        host.refuse = Refused(Problem("Changed", "key", "look", "connect"))
        await until(lambda: isinstance(link.state, Offline), "no more attempts")
        with pytest.raises(ConsoleError) as caught:
            await link.ask(AgentStatus(0))
        assert caught.value.problem.title == "Changed"
        with pytest.raises(ConsoleError):
            await read_all(link.stream("0001", "output"))
        host.refuse = None
        await link.connect()
        assert isinstance(await link.ask(AgentStatus(0)), Status)


async def test_closing_ends_a_stream_that_waits(tmp_path: Path) -> None:
    FakeRun(tmp_path).append(b"abc")
    async with linked(local_host(tmp_path), fake_archive()) as link:
        task = asyncio.create_task(read_all(link.stream("0001", "output")))
        await asyncio.sleep(0)
        await link.close()
        with pytest.raises(ConsoleError) as caught:
            await asyncio.wait_for(task, 5)
        assert "closed" in caught.value.problem.title


def test_backoff_doubles_up_to_its_cap() -> None:
    assert backoff(1, 0.5) == 0.5
    assert [backoff(n, 0.9999999) for n in (2, 3, 4)] == pytest.approx([1, 2, 4])
    assert 10.5 <= backoff(50, 0.0) < backoff(5000, 0.99) <= 15


async def test_progress_comes_before_the_reply_and_to_its_own_request_only(tmp_path: Path) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        mine: list[Probing] = []
        others: list[Probing] = []
        quick = link.ask(RunPreflight(0, PROFILE), 20, mine.append)
        reply, _ = await asyncio.gather(quick, link.ask(AgentStatus(0), 20, others.append))
        assert isinstance(reply, Checked)
        assert [(p.done, p.total, p.waiting) for p in mine] == [
            (1, 3, ("gpu", "disk")),
            (2, 3, ("disk",)),
        ]
        assert others == []


async def test_a_listener_of_progress_that_fails_costs_nothing_else(tmp_path: Path) -> None:
    def fail(probing: Probing) -> None:
        raise RuntimeError("a widget failed")

    async with linked(local_host(tmp_path), fake_archive()) as link:
        assert isinstance(await link.ask(RunPreflight(0, PROFILE), 20, fail), Checked)


@pytest.mark.parametrize("by_timeout", [False, True])
async def test_a_preflight_that_is_no_longer_waited_for_is_given_up_on_the_host(
    tmp_path: Path, by_timeout: bool
) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        begun = asyncio.Event()
        limit = 1.0 if by_timeout else None
        asked = link.ask(RunPreflight(0, PROFILE, deep=True), limit, lambda _: begun.set())
        task = asyncio.create_task(asked)
        await asyncio.wait_for(begun.wait(), 20)
        if by_timeout:
            with pytest.raises(ConsoleError, match="did not answer in time"):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        note = tmp_path / "cancelled"
        await until(note.exists, "the host was told")
        assert isinstance(await link.ask(AgentStatus(0)), Status), "the link goes on"
        assert len(note.read_text().split()) == 1


async def test_an_answered_or_refused_preflight_is_not_given_up(tmp_path: Path) -> None:
    async with linked(local_host(tmp_path), fake_archive()) as link:
        await link.ask(RunPreflight(0, PROFILE), 20)
        with pytest.raises(ConsoleError):
            await link.ask(GetRun(0, "9"), 20)
        await link.ask(AgentStatus(0))
        assert not (tmp_path / "cancelled").exists()
