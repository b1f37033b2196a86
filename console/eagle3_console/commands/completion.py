"""completion: what a shell needs to complete this program's command line."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode

from eagle3_console.errors import ExitCode

from . import arguments
from .terminal import Terminal

_SHELLS = ("bash", "zsh", "fish")


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "completion",
        "print the completion script of a shell",
        completion,
        "Tab then completes commands, options, targets of your ssh config, profiles and settings.\n"
        "No host is asked meanwhile.",
        "  eagle3-console completion bash > ~/.eagle3-completion    # and source it in ~/.bashrc\n"
        "  eagle3-console completion zsh  > ~/.zfunc/_eagle3-console     # ~/.zfunc in fpath\n"
        "  eagle3-console completion fish > ~/.config/fish/completions/eagle3-console.fish",
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help="bash, zsh or fish")


async def completion(args: argparse.Namespace, terminal: Terminal) -> int:
    print(shellcode(["eagle3-console"], shell=args.shell), end="")
    return ExitCode.DONE
