"""runs, show, diff: what a host's run folders tell."""

from __future__ import annotations

import argparse
import time

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import Runs
from eagle3_console import render, render_diff
from eagle3_console.analysis.diff import diff
from eagle3_console.errors import ExitCode
from eagle3_console.history import all_runs
from eagle3_console.historycache import HistoryCache

from . import arguments, offline
from .linking import ask, connected, run_detail
from .terminal import Terminal

_RUN_KEYS = """\
run, state (queued, running, completed, incomplete, failed, aborted, lost),
attempt, profile, engine, started, ended, samples {total, done, skipped}, tokens,
tokens_per_second, output_dir, error {type, message, rank, where}"""


_THROUGHPUT_KEYS = """\
seconds of the extract stage so far, tokens and
steps computed, prefill, capture, copy, wait (for the disk) and write (summed over threads)
in seconds, padding and fill (0 to 1), threads, buffer_peak and buffer_limit in bytes,
shares {prefill, capture, waiting, other} of the time, bound (the one that matters: prefill
is the model, waiting the disk), words (the same as a sentence)."""


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "runs",
        "list a host's runs, newest last",
        runs,
        f'With --json: {{"target": ..., "runs": [...]}}; each run holds at least\n{_RUN_KEYS}.',
        "  eagle3-console runs root@gpu-01\n"
        "  eagle3-console runs local --json | jq '.runs[-1].state'",
    )
    arguments.target(parser)
    arguments.as_json(parser)
    _offline(parser)
    parser = arguments.command(
        commands,
        "show",
        "show everything about one run that is not a stream",
        show,
        f"With --json: {_RUN_KEYS},\n"
        "and profile (resolved), preflight, forced, patches, environment, stages, folder, and\n"
        f"throughput (null before the first step): {_THROUGHPUT_KEYS}",
        "  eagle3-console show root@gpu-01 last",
    )
    arguments.target(parser)
    arguments.run(parser)
    arguments.as_json(parser)
    _offline(parser)
    parser = arguments.command(
        commands,
        "diff",
        "show what changed from one run to another",
        diff_runs,
        "Profile, patches, packages, driver, environment, the script's git state, host,\n"
        "preflight, outcome, stages and throughput; what is the same is folded to one line.\n\n"
        "With --json: before and after {run, attempt, state, seconds, number, profile, engine},\n"
        "sections [{title, changes [{key, before, after}], compared, folded [{key, before,\n"
        "after}]}], same. The keys of section preflight are CHECK.status (pass, warn, block,\n"
        "skip, or forced: a block that was started over) and CHECK.saw; stages are in seconds.\n"
        "Secrets are masked.",
        "  eagle3-console diff root@gpu-01 3 4",
    )
    arguments.target(parser)
    arguments.run(parser, "run_a")
    arguments.run(parser, "run_b")
    arguments.as_json(parser)
    _offline(parser)


def _offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offline",
        action="store_true",
        help="from what this workstation kept of the host; --json then has seen, epoch seconds",
    )


async def runs(args: argparse.Namespace, terminal: Terminal) -> int:
    told: dict[str, object] = {"target": args.target}
    if args.offline:
        kept = offline.history(args.target, terminal)
        found, told["seen"] = kept.runs, kept.at
    else:
        async with connected(args.target, terminal, read_only=True) as link:
            found = await all_runs(lambda message: ask(link, message, Runs))
        HistoryCache(args.target).keep_runs(found, time.time())
    terminal.object({**told, "runs": [render.run_object(run) for run in found]})
    for line, colour in render.runs(found, time.time()):
        terminal.line(line, colour)
    return ExitCode.DONE


async def show(args: argparse.Namespace, terminal: Terminal) -> int:
    told = {}
    if args.offline:
        kept = offline.run(args.target, args.run, terminal)
        detail, told["seen"] = kept.detail, kept.seen
    else:
        async with connected(args.target, terminal, read_only=True) as link:
            detail = await run_detail(link, args.run)
        HistoryCache(args.target).keep_run(detail, time.time())
    terminal.object({**render.detail_object(detail), **told})
    for line, colour in render.detail(detail, time.time()):
        terminal.line(line, colour)
    return ExitCode.DONE


async def diff_runs(args: argparse.Namespace, terminal: Terminal) -> int:
    if args.offline:
        before, after = (
            offline.run(args.target, run, terminal).detail for run in (args.run_a, args.run_b)
        )
    else:
        async with connected(args.target, terminal, read_only=True) as link:
            before = await run_detail(link, args.run_a)
            after = await run_detail(link, args.run_b)
    found = diff(before, after)
    terminal.object({**to_json(found), "same": found.same})
    for line, colour in render_diff.lines(found):
        terminal.line(line, colour)
    return ExitCode.DONE
