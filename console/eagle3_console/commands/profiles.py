"""profiles list, show, check, new: files on this workstation; no host is asked."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from eagle3_agent.protocol import to_json
from eagle3_console import home
from eagle3_console import profile as profiles
from eagle3_console.errors import ConsoleError, ExitCode, error

from . import arguments
from .terminal import Terminal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "profiles",
        "list, show, check or make profiles",
        profiles_command,
        "  list          every profile that a name can mean, and its file (the default)\n"
        "  show NAME     the file as it stands; with --json, resolved with all defaults\n"
        "  check NAME    report everything that is wrong in it, at once\n"
        "  new NAME      write a commented profile into your config folder, to be filled in\n\n"
        "A name is looked for in ./profiles, in your config folder and among the shipped ones.",
        "  eagle3-console profiles new my-run --from kimi-k2.5 --set model.path=/data/kimi\n"
        "  eagle3-console profiles check my-run",
    )
    parser.add_argument("act", nargs="?", default="list", choices=("list", "show", "check", "new"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="a profile's name or file")
    parser.add_argument(
        "--from", dest="origin", metavar="PROFILE", help="for new: start from this profile"
    )
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], dest="sets", metavar="KEY=VALUE"
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="judge paths as for target local: ~ and relative ones are allowed",
    )
    arguments.as_json(parser)


async def profiles_command(args: argparse.Namespace, terminal: Terminal) -> int:
    if args.act != "list" and args.name is None:
        raise error(
            f"profiles {args.act} needs a NAME",
            "No profile was named.",
            "`eagle3-console profiles list` shows them.",
            "usage",
        )
    acts = {"list": _list, "show": _show, "check": _check, "new": _new}
    acts[args.act](args, terminal)
    return ExitCode.DONE


def _list(args: argparse.Namespace, terminal: Terminal) -> None:
    found = profiles.available()
    terminal.object({"profiles": [{"name": n, "file": str(p)} for n, p in found]})
    width = max((len(name) for name, _ in found), default=0)
    terminal.lines(f"{name.ljust(width)}  {path}" for name, path in found)
    if not found:
        terminal.line("no profiles yet; `eagle3-console profiles new NAME` makes one")


def _show(args: argparse.Namespace, terminal: Terminal) -> None:
    path = profiles.resolve(args.name)
    source = profiles.read(path)
    profiles.set_values(source, args.sets)
    if terminal.as_json:
        resolved = profiles.build(source, local=args.local)
        terminal.object({"file": str(path), "profile": to_json(resolved)})
    terminal.lines(source.text().rstrip("\n").split("\n"))


def _check(args: argparse.Namespace, terminal: Terminal) -> None:
    path = profiles.resolve(args.name)
    resolved = profiles.load(path, args.sets, local=args.local)
    terminal.object({"file": str(path), "ok": True, "profile": to_json(resolved)})
    terminal.line(f"✓ {path}: nothing wrong in it; `preflight` asks the host", "green")


def _new(args: argparse.Namespace, terminal: Terminal) -> None:
    if not _NAME.match(args.name):
        raise error(
            f"{args.name!r} is no name for a profile",
            "Letters, digits, dot, dash and underscore make a name, up to 64 of them.",
            "Choose such a name; the file goes into your config folder.",
            "usage",
        )
    path = home.user_profiles_dir() / f"{args.name}.toml"
    text = profiles.read(profiles.resolve(args.origin)).text() if args.origin else None
    source = profiles.parse(text if text is not None else profiles.template(), path)
    profiles.set_values(source, args.sets)
    _create(path, source.text())
    terminal.object({"file": str(path)})
    terminal.line(f"{path} written; edit it, then: eagle3-console profiles check {args.name}")


def _create(path: Path, text: str) -> None:
    """Write a file that must not be there yet.  Raises ConsoleError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise error(
            "That profile is there already", str(path), "Edit it, or choose another name.", "usage"
        ) from None
    except OSError as problem:
        raise _cannot_write(path, problem) from None


def _cannot_write(path: Path, problem: OSError) -> ConsoleError:
    return error(
        "The profile cannot be written",
        f"{path}: {problem.strerror or problem}",
        "Make the folder writable, or name another one with EAGLE3_HOME.",
        "usage",
    )
