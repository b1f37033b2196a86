"""abort and clear: acts that cannot be undone, each previewed and asked about first."""

from __future__ import annotations

import argparse

from eagle3_agent.protocol.messages import Abort, Clear, Cleared, Done
from eagle3_console import formats, render
from eagle3_console.errors import ExitCode

from . import arguments
from .linking import SLOW, ask, connected, run_detail, without_wire
from .terminal import Terminal

#: TERM, INT and KILL with their grace on the host take up to 10 seconds.
_ABORT_TIMEOUT = 60.0


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "abort",
        "end a run and every process that it started",
        abort,
        "A waiting run is taken out of the queue. Samples that are written stay, and `resume`\n"
        "goes on from them. Asks first; without a terminal, --yes is needed.",
        "  eagle3-console abort root@gpu-01 last",
    )
    arguments.target(parser)
    arguments.run(parser)
    arguments.yes(parser)
    arguments.as_json(parser)
    parser = arguments.command(
        commands,
        "clear",
        "remove the sample files that a run wrote",
        clear,
        "Only files that the run's own manifest names are removed, and it says first which; other\n"
        "files in the folder stay. The run's record stays in the history. Asks first; without a\n"
        "terminal, --yes is needed.",
        "  eagle3-console clear root@gpu-01 3",
    )
    arguments.target(parser)
    arguments.run(parser)
    arguments.yes(parser)
    arguments.as_json(parser)


async def abort(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal) as link:
        run = (await run_detail(link, args.run)).summary
        if run.state in ("queued", "running") and not args.yes:
            what = f"{run.state}, {run.profile}, {formats.samples(run.samples, ' samples')}"
            question = f"End run {run.run} ({what}) and all its processes?"
            if not terminal.confirm(question, "Add --yes."):
                terminal.say("nothing was done")
                return ExitCode.FAILED
        done = await ask(link, Abort(0, run.run), Done, _ABORT_TIMEOUT)
        summary = (await run_detail(link, run.run)).summary
    terminal.object(render.run_object(summary))
    terminal.line(done.text or f"run {run.run} is {summary.state}")
    return ExitCode.DONE


async def clear(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal) as link:
        run = (await run_detail(link, args.run)).summary.run
        preview = await ask(link, Clear(0, run), Cleared, SLOW)
        if preview.files and not args.yes:
            for text in render.cleared(preview):
                terminal.say(text)
            question = f"Remove these {preview.files} files of run {run} for good?"
            if not terminal.confirm(question, "Read what it says above, then add --yes."):
                terminal.say("nothing was removed")
                return ExitCode.FAILED
        result = await ask(link, Clear(0, run, True), Cleared, SLOW) if preview.files else preview
    terminal.object({"run": run, **without_wire(result)})
    if result.files:
        terminal.lines(render.cleared(result))
    else:
        terminal.line(f"run {run} has no files to remove in {result.folder}")
    return ExitCode.DONE
