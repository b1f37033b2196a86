"""gpus: the host's GPUs at one moment, or again and again."""

from __future__ import annotations

import argparse
import asyncio
import math

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import SampleHost, Telemetry
from eagle3_console import render
from eagle3_console.errors import ExitCode

from . import arguments
from .linking import ask, connected
from .terminal import Terminal


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "gpus",
        "show a host's GPUs and the processes that hold their memory",
        gpus,
        "A host without NVIDIA GPUs is shown as such, with its CPUs and memory.\n\n"
        "With --json: t, gpus [{index, uuid, name, memory_used, memory_total (bytes),\n"
        "utilization (percent), temperature (Celsius), power, power_limit (W), processes,\n"
        "error}], gpu_problem, driver, cuda, cpu_count, cpu_percent, memory_used, memory_total,\n"
        "load. With --watch one such object a line. What is not known is null.",
        "  eagle3-console gpus root@gpu-01 --watch 2\n"
        "  eagle3-console gpus root@gpu-01 --json | jq '.gpus[].memory_used'",
    )
    arguments.target(parser)
    parser.add_argument(
        "--watch",
        type=_seconds,
        metavar="SECONDS",
        help="again every so many seconds, until Ctrl-C",
    )
    arguments.as_json(parser, "print one JSON object; with --watch, one a line")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds


async def gpus(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal, read_only=True) as link:
        while True:
            sample = (await ask(link, SampleHost(0), Telemetry)).sample
            terminal.object(to_json(sample))
            for line, colour in render.gpus(sample):
                terminal.line(line, colour)
            if args.watch is None:
                return ExitCode.DONE
            await asyncio.sleep(args.watch)
            terminal.line("")
