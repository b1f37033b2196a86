"""abort and clear: nothing is done without a yes, and nobody is asked who is not there."""

from __future__ import annotations

import argparse

import pytest

from eagle3_agent.protocol.messages import Abort, Clear, Cleared, Detail, Done, GetRun
from eagle3_console.commands import ending
from eagle3_console.commands.terminal import Terminal
from eagle3_console.errors import ExitCode
from support.cli import Bench, Screen, detail, summary


def _running(host: Bench) -> None:
    host.answers[GetRun] = Detail(1, detail(summary("running")))
    host.answers[Abort] = Done(1, "run 0004 ended, 9 processes gone")


def _sent(host: Bench, kind: type) -> list[object]:
    return [asked for asked in host.link.asked if isinstance(asked, kind)]


@pytest.mark.parametrize("command", ["abort", "clear"])
def test_without_a_terminal_yes_is_needed(host: Bench, command: str) -> None:
    _running(host)
    host.answers[Clear] = Cleared(1, False, 7, 1 << 20, "/data/hidden")
    ran = host.run(command, "local", "4")
    assert ran.code == ExitCode.USAGE
    assert "--yes" in ran.err
    assert _sent(host, Abort) == []
    assert all(not asked.confirm for asked in host.link.asked if isinstance(asked, Clear))


def test_abort_with_yes(host: Bench) -> None:
    _running(host)
    ran = host.run("abort", "local", "last", "--yes")
    assert ran.code == ExitCode.DONE
    assert ran.out == "run 0004 ended, 9 processes gone\n"
    assert _sent(host, Abort) == [Abort(0, "0004")]


@pytest.mark.parametrize(("answer", "done"), [("y\n", True), ("\n", False), ("", False)])
async def test_abort_asks_and_no_is_the_default(host: Bench, answer: str, done: bool) -> None:
    _running(host)
    err = Screen()
    terminal = Terminal(stdin=Screen(answer), out=Screen(), err=err)
    args = argparse.Namespace(target="local", run="last", yes=False)
    code = await ending.abort(args, terminal)
    assert code == (ExitCode.DONE if done else ExitCode.FAILED)
    assert "End run 0004 (running, kimi, 10 / 10 samples) and all its processes? [y/N]" in (
        err.getvalue()
    )
    assert len(_sent(host, Abort)) == int(done)


def test_clear_previews_then_removes(host: Bench) -> None:
    host.answers[GetRun] = Detail(1, detail())
    host.answers[Clear] = lambda asked: Cleared(
        1, asked.confirm, 7, 1 << 20, "/data/hidden", ("notes.txt",)
    )
    ran = host.run("clear", "local", "4", "--yes")
    assert ran.code == ExitCode.DONE
    assert ran.out.splitlines() == [
        "removed 7 files, 1.0 MiB, in /data/hidden",
        "  stays: notes.txt",
    ]
    assert [asked.confirm for asked in host.link.asked if isinstance(asked, Clear)] == [False, True]


def test_clear_with_nothing_to_remove_asks_nobody(host: Bench) -> None:
    host.answers[GetRun] = Detail(1, detail())
    host.answers[Clear] = Cleared(1, False, 0, 0, "/data/hidden")
    ran = host.run("clear", "local", "4", "--json")
    assert ran.code == ExitCode.DONE
    assert ran.object["files"] == 0
    assert ran.object["removed"] is False
