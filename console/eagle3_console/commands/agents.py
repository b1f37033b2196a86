"""agent status, stop, upgrade: the daemon on the host, which runs never depend on."""

from __future__ import annotations

import argparse
import time

from eagle3_agent.protocol.messages import AgentStatus, Done, Status, StopAgent
from eagle3_console import render
from eagle3_console.errors import ExitCode

from . import arguments
from .linking import ask, connected, without_wire
from .terminal import Terminal


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "agent",
        "show, stop or replace the agent on a host",
        agent,
        "The agent is started by any command that needs it and leaves by itself after an hour\n"
        "without work. Runs go on without it.\n\n"
        "  status   what it is and what it does\n"
        "  stop     end it\n"
        "  upgrade  end it and start the one that belongs to this console\n\n"
        "With --json: archive, pid, started, folder, clients, running, queued,\n"
        "outdated; stop: stopped.",
        "  eagle3-console agent status root@gpu-01",
    )
    parser.add_argument("act", choices=("status", "stop", "upgrade"))
    arguments.target(parser)
    arguments.as_json(parser)


async def agent(args: argparse.Namespace, terminal: Terminal) -> int:
    if args.act in ("stop", "upgrade"):
        await _stop(args.target, terminal)
    if args.act == "stop":
        terminal.object({"target": args.target, "stopped": True})
        terminal.line("the agent has ended; runs go on without it")
        return ExitCode.DONE
    async with connected(args.target, terminal, read_only=True) as link:
        status = await ask(link, AgentStatus(0), Status)
        outdated = link.agent_outdated
    terminal.object({"target": args.target, **without_wire(status), "outdated": outdated})
    terminal.lines(render.agent(status, time.time()))
    if outdated:
        terminal.line(
            "  not the one of this console; replace it: "
            f"eagle3-console agent upgrade {args.target}",
            "amber",
        )
    return ExitCode.DONE


async def _stop(target: str, terminal: Terminal) -> None:
    async with connected(target, terminal) as link:
        await ask(link, StopAgent(0), Done)
