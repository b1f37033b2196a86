"""logs and events: a run's files as they are, from a byte offset, following if asked."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator

from eagle3_agent.protocol.messages import StreamName
from eagle3_console.errors import ExitCode
from eagle3_console.linkstate import LinkPort

from . import arguments
from .linking import connected, run_detail
from .terminal import Terminal

#: A line without an end is shown in pieces of this many bytes.
_LINE_MAX = 64 * 1024
_ENDS = re.compile(rb"\r\n|\n|\r")


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "logs",
        "print what a run's worker wrote to stdout and stderr",
        logs,
        "Into a pipe or a file the bytes go as they are; on a screen, escapes and control\n"
        "characters are taken out.",
        "  eagle3-console logs root@gpu-01 last --follow\n"
        "  eagle3-console logs root@gpu-01 4 > run4.log",
    )
    arguments.target(parser)
    arguments.run(parser)
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser = arguments.command(
        commands,
        "events",
        "print a run's events, one JSON object a line",
        events,
        "Each has type and t (epoch seconds by the host's clock). Whole lines only; at the end\n"
        "stderr says at which byte to go on with --from, so that nothing is missed or repeated.",
        "  eagle3-console events root@gpu-01 last --follow | jq -c 'select(.type==\"Skipped\")'\n"
        "  eagle3-console events root@gpu-01 4 --from 18211",
    )
    arguments.target(parser)
    arguments.run(parser)
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument(
        "--from",
        type=_offset,
        default=0,
        dest="offset",
        metavar="OFFSET",
        help="begin at this byte of the run's events",
    )


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"{text!r} is not a byte offset")
    return int(text)


async def logs(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal, read_only=True) as link:
        run = (await run_detail(link, args.run)).summary.run
        rest = b""
        async for data in _bytes(link, run, "output", 0, args.follow):
            if not terminal.is_screen:
                terminal.raw(data)
                continue
            *lines, rest = _ENDS.split(rest + data)
            if len(rest) > _LINE_MAX:
                lines, rest = [*lines, rest], b""
            terminal.lines(line.decode("utf-8", "replace") for line in lines)
        if rest:
            terminal.line(rest.decode("utf-8", "replace"))
    return ExitCode.DONE


async def events(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal, read_only=True) as link:
        run = (await run_detail(link, args.run)).summary.run
        rest, done = b"", args.offset
        terminal.on_interrupt = f"go on with --from {done}"
        async for data in _bytes(link, run, "events", args.offset, args.follow):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                done += len(whole) + 1
                terminal.lines(line.decode("utf-8", "replace") for line in whole.split(b"\n"))
                terminal.on_interrupt = f"go on with --from {done}"
    terminal.say(f"events up to byte {done}", "dim")
    return ExitCode.DONE


async def _bytes(
    link: LinkPort, run: str, stream: StreamName, offset: int, follow: bool
) -> AsyncIterator[bytes]:
    """What the file holds now and, with ``follow``, all that comes until the run ends."""
    async for piece in link.stream(run, stream, offset):
        if piece.data:
            yield piece.data
        if piece.ended or (piece.caught_up and not follow):
            return
