"""demo: the whole job on this machine, in the TUI or headless."""

from __future__ import annotations

import argparse

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import Start, Verified, Verify
from eagle3_console import demo as demo_files
from eagle3_console import profile as profiles
from eagle3_console import render, render_verify
from eagle3_console.errors import ExitCode

from . import arguments, connect, starting
from .linking import SLOW, ask, connected
from .terminal import Terminal, interruptible

_VERIFIED_SAMPLES = 3


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "demo",
        "run the whole job on this machine with a small model",
        demo,
        "Makes what is missing (a Python environment with torch, the model SmolLM2-135M-Instruct;\n"
        "once, about 1.6 GB in the cache folder), then opens the screen of target local with a\n"
        "profile that is ready: s starts it. Without a terminal, or with --headless, it runs to\n"
        "its end by itself: preflight, load, extract, verify.",
        "  eagle3-console demo\n  eagle3-console demo --headless --json",
    )
    parser.add_argument("--prepare-only", action="store_true", help="make what is missing and stop")
    parser.add_argument("--headless", action="store_true", help="no TUI, even in a terminal")
    arguments.as_json(parser, "print one JSON object at the end; implies --headless")
    parser.set_defaults(target="local", force=[], queue=False, wait=True)


async def demo(args: argparse.Namespace, terminal: Terminal) -> int:
    with interruptible():
        files = demo_files.prepare(terminal.say)
    if args.prepare_only:
        ready = {"python": str(files.python), "model": str(files.model), "data": str(files.data)}
        terminal.object({**ready, "profile": str(files.profile)})
        terminal.line(f"the demo is ready in {files.root}")
        return ExitCode.DONE
    profile = profiles.load(files.profile, local=True)
    if terminal.interactive and terminal.is_screen and not (args.headless or args.as_json):
        return await connect.show("local", terminal, profile, files.profile)
    terminal.milestone(
        f"{profile.model.path}, layers {', '.join(map(str, profile.capture.layers))}, "
        f"over the conversations of {profile.data.path}"
    )
    async with connected("local", terminal) as link:
        start = Start(0, profile)
        started, summary = await starting.run_to_end(link, start, "local", terminal)
        terminal.lines(render.outcome(summary), render.state_colour(summary.state))
        code = starting.exit_code(summary)
        checked = None
        if code == ExitCode.DONE:
            terminal.milestone(f"verifying {_VERIFIED_SAMPLES} samples with transformers …")
            request = Verify(0, summary.run, _VERIFIED_SAMPLES)
            checked = (await ask(link, request, Verified, SLOW)).report
            for line, colour in render_verify.lines(checked):
                terminal.line(line, colour)
            code = ExitCode.DONE if checked.ok else ExitCode.FAILED
    terminal.object({**starting.run_object(summary, started.report), "verify": to_json(checked)})
    if code == ExitCode.DONE:
        terminal.line(
            f"look at it with: eagle3-console show local {summary.run}; "
            f"remove its files with: eagle3-console clear local {summary.run}"
        )
    return code
