"""What argparse and the last net make of a command line: help, usage errors, faults, signals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import ListRuns, Runs
from eagle3_console import cli
from eagle3_console.errors import ExitCode, error
from support.cli import Bench

COMMANDS = [
    "connect",
    "demo",
    "preflight",
    "start",
    "abort",
    "resume",
    "runs",
    "show",
    "diff",
    "logs",
    "events",
    "gpus",
    "compat",
    "verify",
    "clear",
    "agent",
    "profiles",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(host: Bench, command: str) -> None:
    ran = host.run(command, "--help")
    assert ran.code == 0
    assert "examples:" in ran.out
    assert f"eagle3-console {command}" in ran.out
    assert "130  interrupted" in ran.out


def test_the_first_help_names_every_command(host: Bench) -> None:
    ran = host.run("--help")
    assert all(
        f"    {command} " in ran.out or f"    {command}\n" in ran.out for command in COMMANDS
    )


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("nonsense",),
        ("runs",),
        ("start", "local"),
        ("show", "local"),
        ("gpus", "local", "--watch", "0"),
        ("gpus", "local", "--watch", "nan"),
        ("events", "local", "1", "--from", "-3"),
        ("verify", "local", "1", "--samples", "-1"),
        ("verify", "local", "1", "--seed", "x"),
        ("verify", "local", "1", "--dtype", "int4"),
        ("agent", "burn", "local"),
        ("runs", "local", "--js"),
    ],
)
def test_a_wrong_command_line_is_usage(host: Bench, argv: tuple[str, ...]) -> None:
    ran = host.run(*argv)
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert "usage: eagle3-console" in ran.err
    assert "Traceback" not in ran.err


def test_a_fault_is_one_line_and_a_saved_trace(host: Bench, tmp_path: Path) -> None:
    def broken(_: ListRuns) -> Runs:
        raise KeyError("tensor[/model]")

    host.answers[ListRuns] = broken
    ran = host.run("runs", "local")
    assert ran.code == ExitCode.FAILED
    assert "its own fault: KeyError: 'tensor[/model]'" in ran.err
    assert "Traceback" not in ran.err
    (trace,) = (tmp_path / "home" / "state" / "faults").iterdir()
    assert "Traceback" in trace.read_text()
    assert str(trace) in ran.err


def test_a_refused_connection_has_its_own_code(host: Bench) -> None:
    host.link.refuse = error("No way in", "Permission denied.", "Check your key.", "connect")
    ran = host.run("runs", "gpu-01")
    assert ran.code == ExitCode.CONNECT
    assert ran.out == ""
    assert ran.err.splitlines() == ["No way in", "  Permission denied.", "  ▸ Check your key."]
    assert host.link.closed


def test_a_refusal_with_json_is_one_object(host: Bench) -> None:
    host.link.refuse = error("No way in", "Permission denied.", "Check your key.", "connect")
    ran = host.run("runs", "gpu-01", "--json")
    assert ran.code == ExitCode.CONNECT
    assert ran.object["problem"] == {
        "title": "No way in",
        "happened": "Permission denied.",
        "todo": "Check your key.",
        "code": "connect",
    }
    assert "No way in" in ran.err


def test_words_of_a_host_cannot_drive_the_terminal(host: Bench) -> None:
    host.link.refuse = error("\x1b]0;owned\x07bad", "a\x1b[2Jb\u202ec", "\r\ntry", "connect")
    ran = host.run("runs", "gpu-01")
    assert not set(ran.err) & {"\x1b", "\x07", "\r", "\u202e"}
    assert "bad" in ran.err


def test_interrupted_says_what_goes_on(host: Bench) -> None:
    def interrupted(_: ListRuns) -> Runs:
        raise KeyboardInterrupt

    host.answers[ListRuns] = interrupted
    ran = host.run("runs", "local")
    assert ran.code == ExitCode.INTERRUPTED
    assert ran.err == "interrupted.\n"


def test_no_two_commands_share_a_name() -> None:
    assert cli.parser().prog == "eagle3-console"
    assert len(set(COMMANDS)) == len(COMMANDS)


def test_the_command_line_loads_neither_screens_nor_ssh() -> None:
    code = "import eagle3_console.cli, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.splitlines())
    assert "eagle3_console.commands.starting" in loaded
    assert not loaded & {"textual", "asyncssh", "eagle3_console.app", "eagle3_console.ssh"}


def test_a_relative_home_is_one_folder_for_console_and_agent(tmp_path: Path) -> None:
    env = {**os.environ, "EAGLE3_HOME": "here"}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "eagle3_console.cli", *argv],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    try:
        listed = run("runs", "local")
        status = run("agent", "status", "local")
    finally:
        stopped = run("agent", "stop", "local")
    assert (status.returncode, listed.returncode, stopped.returncode) == (0, 0, 0), listed.stderr
    assert f"files in {tmp_path / 'here' / 'state'}\n" in status.stdout
    assert (tmp_path / "here" / "cache" / "agent").is_dir()


def test_a_closed_stdout_is_no_fault(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m eagle3_console.cli profiles list >&-', sys.executable],
        env={**os.environ, "EAGLE3_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
