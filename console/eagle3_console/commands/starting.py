"""start and resume: a run begins; with --wait, this command sees it to its end."""

from __future__ import annotations

import argparse
from typing import Any

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import Resume, Start, Started
from eagle3_agent.protocol.values import Report, RunSummary
from eagle3_console import render, render_preflight
from eagle3_console.errors import ConsoleError, ExitCode
from eagle3_console.linkstate import LinkPort

from . import arguments
from .linking import SLOW, ask, connected, run_detail
from .terminal import Terminal
from .waiting import follow_run

_START_ABOUT = """\
The host is checked first; a check that blocks stops the start and names the
--force that would start all the same. The run then belongs to the host: closing
this command, the link or the laptop does not touch it. --wait shows it to its
end; Ctrl-C ends the waiting, not the run.

With --json one object is printed: run, state, attempt, profile, engine,
started, ended, samples {total, done, skipped}, tokens, tokens_per_second,
output_dir, error {type, message, rank, where}, preflight. When the start is
refused it holds problem {title, happened, todo, code} and preflight instead."""

_START_EXAMPLES = """\
  eagle3-console start root@gpu-01 -p kimi-k2.5 --set data.max_samples=10 --wait
  eagle3-console start gpu-01 -p night.toml --queue
  eagle3-console start local -p demo.toml --force disk --wait --json"""


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands, "start", "check a host and start a run", start, _START_ABOUT, _START_EXAMPLES
    )
    arguments.target(parser)
    arguments.profile(parser)
    _common(parser)
    parser = arguments.command(
        commands,
        "resume",
        "start an ended run again and keep its valid samples",
        resume,
        "The new attempt has the same profile and output folder; samples that are there and whole\n"
        "are not computed again.",
        "  eagle3-console resume root@gpu-01 last --wait",
    )
    arguments.target(parser)
    arguments.run(parser)
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force",
        action="extend",
        nargs="+",
        default=[],
        metavar="CHECK",
        help="start over this blocking check; name each one",
    )
    parser.add_argument("--queue", action="store_true", help="wait for GPUs that another run holds")
    parser.add_argument("--wait", action="store_true", help="show progress until the run ends")
    arguments.as_json(parser)


async def start(args: argparse.Namespace, terminal: Terminal) -> int:
    profile = arguments.load_profile(args)
    async with connected(args.target, terminal, python=profile.host.python) as link:
        request = Start(0, profile, tuple(args.force), args.queue)
        return await launch(link, request, args, terminal)


async def resume(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal) as link:
        request = Resume(0, args.run, tuple(args.force), args.queue)
        return await launch(link, request, args, terminal)


async def launch(
    link: LinkPort, request: Start | Resume, args: argparse.Namespace, terminal: Terminal
) -> int:
    """Send the request, show the verdicts, and wait if asked; the exit code."""
    if args.wait:
        started, summary = await run_to_end(link, request, args.target, terminal)
        terminal.object(run_object(summary, started.report))
        terminal.lines(render.outcome(summary), render.state_colour(summary.state))
        return exit_code(summary)
    started = await begin(link, request, args.target, terminal)
    summary = (await run_detail(link, started.run)).summary
    terminal.object(run_object(summary, started.report))
    terminal.line(f"watch it with: eagle3-console connect {args.target}")
    return ExitCode.DONE


async def run_to_end(
    link: LinkPort, request: Start | Resume, target: str, terminal: Terminal
) -> tuple[Started, RunSummary]:
    """Start a run and show it to its end."""
    started = await begin(link, request, target, terminal)
    return started, await follow_run(link, started.run, terminal)


async def begin(
    link: LinkPort, request: Start | Resume, target: str, terminal: Terminal
) -> Started:
    """Start a run and show the verdicts.  Raises ConsoleError when the start is refused."""
    terminal.say("checking the host …", "dim")
    # the agent has the request, and whether it began a run is no longer this command's to know
    terminal.on_interrupt = f"A run may have begun: `eagle3-console runs {target}` tells"
    try:
        started = await ask(link, request, Started, SLOW)
    except ConsoleError as refusal:
        if refusal.report is not None:
            show_report(refusal.report, terminal)
        raise
    if started.report is not None:
        show_report(started.report, terminal)
        over = ", ".join(v.check for v in started.report.blocking if v.check in request.force)
        if over:
            terminal.line(f"started all the same, over {over} (--force); it is kept with the run")
    what = "waits in the queue" if started.queued else "started"
    terminal.milestone(f"run {started.run} {what}", "bold")
    terminal.on_interrupt = (
        f"run {started.run} goes on. Watch it with `eagle3-console connect {target}`, "
        f"end it with `eagle3-console abort {target} {started.run}`"
    )
    return started


def show_report(report: Report, terminal: Terminal) -> None:
    for line, colour in render_preflight.report(report):
        terminal.line(line, colour)


def run_object(summary: RunSummary, report: Report | None) -> dict[str, Any]:
    return {**render.run_object(summary), "preflight": to_json(report)}


def exit_code(summary: RunSummary) -> ExitCode:
    """What a finished run means to a shell."""
    if summary.state == "completed":
        return ExitCode.DONE
    return ExitCode.INCOMPLETE if summary.state == "incomplete" else ExitCode.FAILED
