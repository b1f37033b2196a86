"""The command line: which command, on which streams, ending in which exit code.

What each command does is in ``commands/``.  Here every way a command can end
is turned into one message and one exit code; no traceback reaches a person.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import argcomplete

from . import home, render
from .commands import (
    agents,
    arguments,
    bundle,
    checks,
    completion,
    connect,
    demo,
    ending,
    gpus,
    history,
    preflight,
    profiles,
    starting,
    streams,
)
from .commands.terminal import Terminal
from .errors import ConsoleError, ExitCode

_ABOUT = """\
A terminal operations console for EAGLE-3 hidden-state extraction on GPU hosts:
is the host ready, start, watch, understand a failure, start again, and prove
that the data is right."""

_EXAMPLES = """\
examples:
  eagle3-console demo                                   the whole job, here, in minutes
  eagle3-console connect root@gpu-01                    the screen of a host
  eagle3-console preflight root@gpu-01 -p kimi-k2.5     may I start?
  eagle3-console start root@gpu-01 -p kimi-k2.5 --wait --json

Files: profiles in the platform's config folder, runs in the state folder of the
host, EAGLE3_HOME moves all of it, on either side. `COMMAND --help` says more.
"""

#: Modules that declare commands, in the order in which --help lists them.
_FAMILIES = (
    connect, demo, preflight, starting, checks, ending, history, streams, gpus, agents, profiles,
    bundle, completion,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="eagle3-console",
        description=_ABOUT,
        epilog=f"{_EXAMPLES}\n{arguments.EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for family in _FAMILIES:
        family.add(commands)
    return made


def _version() -> str:
    try:
        return metadata.version("eagle3-console")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code.  Raises SystemExit only for --help and usage errors."""
    home.settle()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a locale without ✓ must not end a command
    made = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what Tab could mean; this does not return
        argcomplete.autocomplete(made, always_complete_options="long")
    args = made.parse_args(argv)
    terminal = Terminal(as_json=getattr(args, "as_json", False))
    try:
        return int(asyncio.run(args.run_command(args, terminal)))
    except ConsoleError as problem:
        return _refused(problem, terminal)
    except (KeyboardInterrupt, asyncio.CancelledError):
        terminal.settle()
        terminal.say(f"interrupted. {terminal.on_interrupt}".rstrip())
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as fault:  # the last net: a person gets one line, the trace goes to a file
        terminal.settle()
        terminal.say(_fault(fault), "red")
        return ExitCode.FAILED


def _open_closed_streams() -> None:
    """Give a process that was started with ``>&-`` somewhere to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _refused(problem: ConsoleError, terminal: Terminal) -> int:
    terminal.settle()
    terminal.object(render.problem_object(problem.problem, problem.report))
    for line, colour in render.problem(problem.problem):
        terminal.say(line, colour)
    return problem.exit_code


def _reader_left() -> int:
    """``| head`` has seen enough.  Python would complain at exit when it flushes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.DONE


def _fault(fault: Exception) -> str:
    """One line about a fault of this program; the trace is saved for a report."""
    text = "".join(traceback.format_exception(fault))
    last = traceback.format_exception_only(fault)[-1].strip()
    told = f"eagle3-console stumbled over its own fault: {last}"
    path: Path = home.state_dir() / "faults" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError:
        return f"{told} (its trace could not be saved in {path.parent})"
    return f"{told}\nThe trace is in {path}; please report it."


if __name__ == "__main__":
    sys.exit(main())
