"""agent status, stop, upgrade: the daemon on the host, which runs never depend on."""

from __future__ import annotations

import argparse
import dataclasses
import time

from eagle3_agent.protocol.messages import AgentStatus, Done, Status, StopAgent
from eagle3_console import render
from eagle3_console.errors import ExitCode
from eagle3_console.hosts import NoAgent

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
        "status and stop start none: where no agent is running, they say so.\n\n"
        "With --json: running_agent, archive, pid, started, folder, clients, running, queued,\n"
        "outdated (null where no agent is running); stop: stopped.",
        "  eagle3-console agent status root@gpu-01",
    )
    parser.add_argument("act", choices=("status", "stop", "upgrade"))
    arguments.target(parser)
    arguments.as_json(parser)


async def agent(args: argparse.Namespace, terminal: Terminal) -> int:
    target: str = args.target
    if args.act == "status":
        return await _status(target, terminal, start_agent=False)
    stopped = await _stop(target, terminal)
    if args.act == "upgrade":
        return await _status(target, terminal, start_agent=True)
    terminal.object({"target": target, "stopped": stopped})
    ended = "the agent has ended; runs go on without it"
    terminal.line(ended if stopped else f"no agent is running on {target}: there is none to stop")
    return ExitCode.DONE


async def _status(target: str, terminal: Terminal, *, start_agent: bool) -> int:
    try:
        async with connected(target, terminal, read_only=True, start_agent=start_agent) as link:
            status = await ask(link, AgentStatus(0), Status)
            outdated = link.agent_outdated
    except NoAgent:
        facts = [field.name for field in dataclasses.fields(Status) if field.name != "re"]
        nothing = dict.fromkeys((*facts, "outdated"))
        terminal.object({"target": target, "running_agent": False, **nothing})
        terminal.line(f"no agent is running on {target}; a command that needs it starts it")
        return ExitCode.DONE
    told = {**without_wire(status), "outdated": outdated}
    terminal.object({"target": target, "running_agent": True, **told})
    terminal.lines(render.agent(status, time.time()))
    if outdated:
        terminal.line(
            f"  not the one of this console; replace it: eagle3-console agent upgrade {target}",
            "amber",
        )
    return ExitCode.DONE


async def _stop(target: str, terminal: Terminal) -> bool:
    """End the agent; False where none was running."""
    try:
        async with connected(target, terminal, start_agent=False) as link:
            await ask(link, StopAgent(0), Done)
    except NoAgent:
        return False
    return True
