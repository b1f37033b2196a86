"""connect: the link first, with its questions on the terminal, then the TUI over it."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagle3_agent.protocol.values import Profile
from eagle3_console import profile as profiles
from eagle3_console.errors import error

from . import arguments
from .linking import remembered
from .terminal import Terminal


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "connect",
        "open the screen of a host",
        connect,
        "GPUs, preflight, the current run, its log and errors, and the history; ? shows the keys.\n"
        "A host that cannot be reached is shown as it was last seen from here: its history, and\n"
        "of the runs that were opened their pages, events and the end of their log.\n"
        "One target a screen: open a second terminal for a second host. With --read-only the\n"
        "agent refuses everything that would change the host.",
        "  eagle3-console connect root@gpu-01\n"
        "  eagle3-console connect gpu-01 -p kimi-k2.5\n"
        "  eagle3-console connect me@10.0.0.7:2222 --read-only",
    )
    arguments.target(parser)
    parser.add_argument(
        "-p", "--profile", metavar="PROFILE", help="have this profile ready for the start key"
    )
    parser.add_argument("--read-only", action="store_true", help="look, and change nothing")


async def connect(args: argparse.Namespace, terminal: Terminal) -> int:
    path = profiles.resolve(args.profile) if args.profile else None
    profile = profiles.load(path, local=args.target == "local") if path else None
    return await show(args.target, terminal, profile, path, read_only=args.read_only)


async def show(
    target: str,
    terminal: Terminal,
    profile: Profile | None,
    path: Path | None,
    *,
    read_only: bool = False,
) -> int:
    """Run the TUI to its end; its exit code.  Raises ConsoleError where there is no terminal."""
    if not terminal.interactive or not terminal.is_screen:
        raise error(
            "connect needs a terminal",
            "Standard input, output or error is not one.",
            "The other commands work without: `eagle3-console runs`, `start --wait`, `events`.",
            "usage",
        )
    from eagle3_console.app import ConsoleApp  # late: the headless commands never pay for Textual

    terminal.say(f"connecting to {target} …", "dim")
    python = profile.host.python if profile else None
    async with remembered(target, terminal, read_only=read_only, python=python) as link:
        app = ConsoleApp(link, target, profile=profile, profile_path=path, read_only=read_only)
        code = await app.run_async()
    for run in app.state.runs:
        if run.state == "running" and app.state.kept_at is None:
            terminal.say(f"run {run.run} goes on; see it with: eagle3-console connect {target}")
    return code or 0
