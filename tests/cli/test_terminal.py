"""Where words go: rewriting progress on a screen, clean lines, questions with Ctrl-C."""

from __future__ import annotations

import argparse
import io

import pytest

from eagle3_agent.protocol.messages import Detail, GetRun
from eagle3_agent.protocol.values import Problem
from eagle3_console.commands import streams
from eagle3_console.commands.linking import asking
from eagle3_console.commands.terminal import Terminal
from eagle3_console.errors import ConsoleError
from eagle3_console.hosts import HostKeyQuestion
from eagle3_console.linkstate import Piece
from support.cli import Bench, Screen, detail


def test_progress_is_written_over_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    out = Screen()
    terminal = Terminal(stdin=io.StringIO(), out=out, err=io.StringIO())
    terminal.progress("one")
    terminal.progress("x" * 50)
    terminal.line("done")
    assert out.getvalue() == f"\rone\x1b[K\r{'x' * 18}…\x1b[K\r\x1b[Kdone\n"


def test_progress_is_lines_in_a_pipe_and_on_stderr_with_json() -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(as_json=True, stdin=io.StringIO(), out=out, err=err)
    terminal.progress("one")
    terminal.line("not shown")
    terminal.object({"a": float("nan")})
    assert out.getvalue() == '{"a": null}\n'
    assert err.getvalue() == "one\n"


def test_colour_only_on_a_screen_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen, pipe = Screen(), io.StringIO()
    Terminal(stdin=pipe, out=screen, err=pipe).line("bad \x1b[5m", "red")
    assert screen.getvalue() == "\x1b[31mbad \x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    Terminal(stdin=pipe, out=screen, err=pipe).line("bad", "red")
    assert screen.getvalue() == "bad\n"


def test_nobody_to_ask_is_an_error_with_the_way_out() -> None:
    terminal = Terminal(stdin=io.StringIO("y\n"), out=io.StringIO(), err=io.StringIO())
    with pytest.raises(ConsoleError) as caught:
        terminal.confirm("Sure?", "Add --yes.")
    assert caught.value.problem == Problem(
        "Nobody can be asked here",
        "There is no terminal for the question: Sure?",
        "Add --yes.",
        "usage",
    )
    assert asking(terminal) == (None, None)


async def test_a_log_on_a_screen_is_clean_lines(host: Bench) -> None:
    long = b"x" * 200_000
    data = b"\x1b[31mred\xff\n 10%\r100%\n" + long + b"\n\x1b]0;title\x07end"
    host.answers[GetRun] = Detail(1, detail())
    cuts = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]
    host.streams["output"] = [Piece(0, cut, False, False) for cut in cuts]
    screen = Screen()
    terminal = Terminal(stdin=io.StringIO(), out=screen, err=io.StringIO())
    args = argparse.Namespace(target="local", run="4", follow=True)
    assert await streams.logs(args, terminal) == 0
    shown = screen.getvalue().split("\n")
    assert shown[:3] == ["red\ufffd", " 10%", "100%"]
    assert "".join(shown[3:-2]) == "x" * 200_000
    assert shown[-2:] == ["end", ""]


@pytest.mark.parametrize(("answer", "trusted"), [("yes\n", True), ("no\n", False), ("\n", False)])
async def test_an_unknown_host_key_is_shown_before_the_question(answer: str, trusted: bool) -> None:
    err = Screen()
    terminal = Terminal(stdin=Screen(answer), out=Screen(), err=err)
    host_key, secret = asking(terminal)
    assert host_key is not None
    assert secret is not None
    question = HostKeyQuestion("[gpu]:2222", "ssh-ed25519", "SHA256:abc", "~/.ssh/known_hosts")
    assert await host_key(question) is trusted
    shown = err.getvalue()
    assert "SHA256:abc" in shown
    assert shown.index("SHA256:abc") < shown.index("[y/N]")
