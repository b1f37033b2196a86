"""Arguments that several commands share, and how a command is declared."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

from eagle3_agent.protocol.values import Profile
from eagle3_console import profile as profiles

from .terminal import Terminal

Command = Callable[[argparse.Namespace, Terminal], Awaitable[int]]
Commands = Any
"""argparse's own type for sub-commands is private."""

EXIT_CODES = """\
exit codes:
  0    done and complete
  1    the run or the check failed
  2    the command line or the profile is wrong
  3    the host could not be reached, or its agent not be started
  4    finished, but samples were skipped
  130  interrupted"""


def command(
    commands: Commands, name: str, summary: str, run: Command, about: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Declare one command with its long help."""
    epilog = f"examples:\n{examples.rstrip()}\n\n{EXIT_CODES}" if examples else EXIT_CODES
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{about}".rstrip(),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run_command=run)
    return parser


def target(parser: argparse.ArgumentParser) -> None:
    argument = parser.add_argument(
        "target",
        metavar="TARGET",
        help="local, [user@]host[:port], or an alias of your ssh config",
    )
    completed(argument, "targets")


def run(parser: argparse.ArgumentParser, name: str = "run") -> None:
    argument = parser.add_argument(
        name, metavar=name.upper(), help="a run's number or id, or last for the newest"
    )
    completed(argument, "runs")


def as_json(parser: argparse.ArgumentParser, what: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help=what)


def yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def profile(parser: argparse.ArgumentParser) -> None:
    argument = parser.add_argument(
        "-p",
        "--profile",
        required=True,
        metavar="PROFILE",
        help="a profile's file, or a name that `profiles list` shows",
    )
    completed(argument, "profiles")
    argument = parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        dest="sets",
        metavar="KEY=VALUE",
        help="override a setting for this call, such as data.max_samples=10",
    )
    completed(argument, "settings")


def completed(argument: argparse.Action, what: str) -> None:
    """Let the shell complete it by ``completing.what``, imported only when Tab is pressed."""

    def complete(**asked: Any) -> list[str]:
        from eagle3_console import completing

        found: list[str] = getattr(completing, what)(**asked)
        return found

    argument.completer = complete  # type: ignore[attr-defined]


def load_profile(args: argparse.Namespace) -> Profile:
    """The profile that ``-p`` and ``--set`` describe.  Raises ConsoleError (usage)."""
    path = profiles.resolve(args.profile)
    return profiles.load(path, args.sets, local=args.target == "local")
