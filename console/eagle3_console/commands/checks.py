"""compat, verify: questions to a host that start nothing."""

from __future__ import annotations

import argparse

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import (
    Compat,
    GetCompat,
    Verified,
    Verify,
)
from eagle3_console import render, render_verify
from eagle3_console.errors import ExitCode

from . import arguments
from .linking import SLOW, ask, connected
from .terminal import Terminal


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "compat",
        "list which patches the host's vLLM and speculators need, and why",
        compat,
        "Each patch is needed, not needed, or it cannot be told, with the evidence. A run applies\n"
        "the needed ones inside its own process; no installed file is ever changed.\n\n"
        "With --json: target, engine, versions {distribution: version}, findings [{patch, title,\n"
        "status, evidence, symptom, cause, change, until}], seconds, problems [what could not be\n"
        "seen].",
        "  eagle3-console compat root@gpu-01 -p kimi-k2.5",
    )
    arguments.target(parser)
    arguments.profile(parser)
    arguments.as_json(parser)
    parser = arguments.command(
        commands,
        "verify",
        "recompute some of a run's samples with transformers and compare",
        verify,
        "Every file's checksum is compared with the manifest; the chosen samples are computed\n"
        "again on the host's CPU with transformers, and every captured layer is compared. What is\n"
        "wrong is named: a wrong layer, order, scale or row. Without room for a second model the\n"
        "files are checked for what can be said without one. A difference gives exit code 1.\n\n"
        "With --json: run, ok, verdict, checked [{index, ok, tokens, worst_relative_error, why,\n"
        "role, layers [{layer, ok, median, worst, why}], faults [{kind, text, layers}]}], files,\n"
        "bad_files, tolerance, why_tolerance, dtype, reference, reference_dtype, seed,\n"
        "not_recomputed, instead [{check, status, saw, shows}], seconds.",
        "  eagle3-console verify root@gpu-01 last --samples 5\n"
        "  eagle3-console verify root@gpu-01 last --samples 5 --seed 7 --dtype checkpoint",
    )
    arguments.target(parser)
    arguments.run(parser)
    parser.add_argument(
        "--samples",
        type=_samples,
        default=3,
        metavar="N",
        help="how many to recompute (3): the longest, the shortest and others drawn by the seed; "
        "with 0 the files alone are checked",
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="S", help="draw the samples that a run with S drew"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "checkpoint"),
        default="auto",
        help="what to recompute in (auto: float32 where the host has room, else the checkpoint's)",
    )
    arguments.as_json(parser)


def _samples(text: str) -> int:
    return _whole(text, 8)


def _seed(text: str) -> int:
    return _whole(text, 18)


def _whole(text: str, digits: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


async def compat(args: argparse.Namespace, terminal: Terminal) -> int:
    profile = arguments.load_profile(args)
    python = profile.host.python
    async with connected(args.target, terminal, read_only=True, python=python) as link:
        found = await ask(link, GetCompat(0, profile), Compat, SLOW)
    terminal.object(
        {
            "target": args.target,
            "engine": found.engine,
            "versions": found.versions,
            "findings": to_json(found.findings),
            "seconds": found.seconds,
            "problems": found.problems,
        }
    )
    for line, colour in render.compat(found):
        terminal.line(line, colour)
    return ExitCode.DONE


async def verify(args: argparse.Namespace, terminal: Terminal) -> int:
    async with connected(args.target, terminal) as link:
        doing = "recomputing samples" if args.samples else "checking the files"
        terminal.say(f"{doing} on the host …", "dim")
        request = Verify(0, args.run, args.samples, args.seed, args.dtype)
        report = (await ask(link, request, Verified, SLOW)).report
    terminal.object({"run": args.run, **to_json(report)})
    for line, colour in render_verify.lines(report):
        terminal.line(line, colour)
    return ExitCode.DONE if report.ok else ExitCode.FAILED
