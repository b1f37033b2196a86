"""A preflight under way: its progress, and that it ends when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import processes
from eagle3_agent.protocol import VERSION, decode_message, encode
from eagle3_agent.protocol.messages import (
    AgentStatus,
    Cancel,
    Checked,
    Done,
    Hello,
    Ping,
    Pong,
    Probing,
    Refused,
    RunPreflight,
    Status,
)
from eagle3_agent.server import client as client_module
from eagle3_agent.server.client import Client
from eagle3_agent.server.errors import Refusal
from support.daemon import Home, Wire, eventually
from support.preflight import gone


def hanging(home: Home, tmp_path: Path) -> tuple[Wire, int, tuple[int, int]]:
    """A deep preflight with a probe that hangs: (its client, its number, the two pids)."""
    note = tmp_path / "pids"
    wire = home.attach()
    number = wire.send(RunPreflight(0, home.profile(TEST_PREFLIGHT=f"hang:{note}"), deep=True))
    probing = wire.next()
    assert probing == Probing(number, 1, 2, ("deep-compute",))
    pids = noted(note)
    assert not any(map(gone, pids))
    return wire, number, pids


def noted(note: Path) -> tuple[int, int]:
    """The preflight's and its probe's pid, once they are written down."""

    def look() -> list[str] | None:
        return note.read_text().split() if note.exists() else None

    found = eventually(look)
    assert found is not None
    return int(found[0]), int(found[1])


def both_gone(pids: tuple[int, int], seconds: float = 5.0) -> None:
    eventually(lambda: all(map(gone, pids)), seconds)


def test_progress_comes_before_the_reply_and_the_connection_goes_on(
    home: Home, tmp_path: Path
) -> None:
    wire, number, pids = hanging(home, tmp_path)
    wire.expect(Pong, Ping(0))
    assert processes.send(_identity(pids[1]), signal.SIGKILL)
    reply = wire.next()
    assert isinstance(reply, Checked)
    assert reply.re == number
    assert [v.check for v in reply.report.blocking] == [f"hang:{tmp_path / 'pids'}"]


def test_a_preflight_that_is_given_up_ends_with_its_probes(home: Home, tmp_path: Path) -> None:
    wire, number, pids = hanging(home, tmp_path)
    cancel = wire.send(Cancel(0, number))
    replies = {getattr(m, "re", 0): m for m in (wire.next(), wire.next())}
    assert isinstance(replies[cancel], Done)
    refused = replies[number]
    assert isinstance(refused, Refused)
    assert "given up" in refused.problem.title
    both_gone(pids)
    assert wire.expect(Done, Cancel(0, number)).text == "it is not under way"
    assert wire.expect(Status, AgentStatus(0)).clients == 1


def test_a_client_that_is_killed_takes_its_preflight_along(home: Home, tmp_path: Path) -> None:
    wire, _, pids = hanging(home, tmp_path)
    wire.process.kill()
    both_gone(pids)


def test_a_client_whose_reader_is_gone_takes_its_preflight_along(
    home: Home, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    home.attach()  # the daemon serves
    pipe = subprocess.PIPE
    with subprocess.Popen(home.agent("attach"), env=home.env, stdin=pipe, stdout=pipe) as attach:
        assert attach.stdin is not None
        assert attach.stdout is not None
        asked = RunPreflight(2, home.profile(TEST_PREFLIGHT=f"hang:{note}"), deep=True)
        attach.stdin.write(encode(Hello(1, VERSION, "test")) + encode(asked))
        attach.stdin.close()  # its replies can still be read
        said = [attach.stdout.readline() for _ in range(3)]
        assert decode_message(said[2]) == Probing(2, 1, 2, ("deep-compute",))
        pids = noted(note)
        assert not any(map(gone, pids))
        attach.stdout.close()
        both_gone(pids)


def test_a_session_that_a_probe_began_does_not_outlive_it(tmp_path: Path) -> None:
    from eagle3_agent.server import children

    note = tmp_path / "pid"
    code = f"setsid sh -c 'sleep 600 & echo $! > {note}; wait' & sleep 600"

    async def ask() -> None:
        await children.ask(["/bin/sh", "-c", code], timeout=1.0)

    asyncio.run(ask())
    both_gone((int(note.read_text()), int(note.read_text())))


async def test_a_child_whose_lines_nobody_takes_is_ended() -> None:
    from eagle3_agent.server import children

    async def refuse(line: bytes) -> None:
        raise ConnectionResetError(line.decode())

    with pytest.raises(ConnectionResetError, match="one"):
        await children.ask(["/bin/sh", "-c", "echo one; sleep 600"], timeout=60.0, on_line=refuse)


async def test_each_line_is_handed_on_once_and_whole() -> None:
    from eagle3_agent.server import children

    lines: list[bytes] = []

    async def keep(line: bytes) -> None:
        lines.append(line)

    code = "printf 'a\\nb'; sleep 0.5; printf 'c\\n'; sleep 0.3; printf 'd\\nrest'"
    answer = await children.ask(["/bin/sh", "-c", code], timeout=30.0, on_line=keep)
    assert lines == [b"a", b"bc", b"d"]
    assert answer.stdout == b"a\nbc\nd\nrest"


async def test_a_client_that_pinged_and_falls_silent_is_not_worked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "SILENCE", 0.5)
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def answers(client: Client, message: Any) -> Any:
        return Pong(message.id)

    reader = asyncio.StreamReader()

    class Writer:
        def write(self, data: bytes) -> None:
            pass

        async def drain(self) -> None:
            pass

    client = Client(None, answers, reader, Writer())  # type: ignore[arg-type]
    quick = asyncio.create_task(client.while_heard(asyncio.sleep(1.5, "done")))
    assert await quick == "done", "one that never pinged may be silent"
    reader.feed_data(encode(Ping(1)))
    reading = asyncio.create_task(client._read_all())
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as refused:
        await client.while_heard(work())
    assert "nothing was heard" in refused.value.problem.happened
    assert ended.is_set()
    reading.cancel()


def _identity(pid: int) -> processes.Identity:
    who = processes.identity(pid)
    assert who is not None
    return who
