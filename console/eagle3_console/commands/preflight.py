"""preflight: whether a host is ready, and what can be done where it is not."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from eagle3_agent.protocol.messages import Act, Acted, Checked, Probing, RunPreflight
from eagle3_agent.protocol.values import Problem, Profile, Report, Verdict
from eagle3_console import render_preflight as render
from eagle3_console.checks import Deed
from eagle3_console.errors import ConsoleError, ExitCode, error
from eagle3_console.linkstate import LinkPort
from eagle3_console.verdicts import Offer, offers

from . import arguments
from .linking import SLOW, ask, connected
from .terminal import Terminal

_ABOUT = """\
Nothing is started. A check that blocks gives exit code 1. --deep adds the real
exercises, which take minutes: each GPU computes, they reduce together, gigabytes are
written, a tiny model runs through the engine. Ctrl-C ends them on the host too.

Nothing is changed without --fix. With it, each action that a check offers is shown
in full and asked about, with No as the default; the check is made again after each,
and all of them at the end. Without a terminal --yes is needed, else nothing is done
and the exit code is 2. GPU settings are never changed.

With --json: target, ready, deep, blocking [check ids], warning [check ids], verdicts
[{check, title, status (pass, warn, block, skip), saw, why, todo, seconds, actions [{id,
kind (terminate, stop-unit, remove-lock, move-aside), title, effect [lines], processes
[{pid, start_time}], unit, path, aside, device, inode}]}], seconds, at; they are of the
last preflight. With --fix also fixes [{check, action, kind, title, effect [lines], done
[lines], helped, now (what the check saw then), problem}], one for each action that was
taken or refused, in order."""

_EXAMPLES = """\
  eagle3-console preflight root@gpu-01 -p kimi-k2.5
  eagle3-console preflight root@gpu-01 -p kimi-k2.5 --deep
  eagle3-console preflight root@gpu-01 -p kimi-k2.5 --fix gpu-clean leftovers
  eagle3-console preflight local -p demo.toml --json"""

#: Seconds that an action may take on the host: TERM, a wait and KILL, or a unit's own stop.
_ACT = 600.0


def add(commands: arguments.Commands) -> None:
    parser = arguments.command(
        commands,
        "preflight",
        "check whether a host is ready for a profile",
        preflight,
        _ABOUT,
        _EXAMPLES,
    )
    arguments.target(parser)
    arguments.profile(parser)
    parser.add_argument("--deep", action="store_true", help="exercise GPUs, links, disk and engine")
    parser.add_argument(
        "--all", action="store_true", dest="everything", help="show the checks that pass, too"
    )
    parser.add_argument(
        "--fix",
        nargs="*",
        metavar="CHECK",
        help="go through the actions that these checks offer, or all of them",
    )
    arguments.yes(parser)
    arguments.as_json(parser)


async def preflight(args: argparse.Namespace, terminal: Terminal) -> int:
    profile = arguments.load_profile(args)
    python, fixing = profile.host.python, args.fix is not None
    if args.yes and not fixing:
        raise error(
            "--yes has nothing to agree to", "It goes with --fix.", "Leave it out.", "usage"
        )
    deeds: list[Deed] = []
    async with connected(args.target, terminal, read_only=not fixing, python=python) as link:
        report = await check(link, profile, terminal, deep=args.deep)
        _show(report, terminal, args)
        if fixing:
            deeds = await fix(link, profile, report, args, terminal)
        if any(made.problem is None for made in deeds):
            terminal.say("checking again …", "dim")
            report = await check(link, profile, terminal, deep=args.deep)
            _show(report, terminal, args)
    kept = deeds if fixing else None
    terminal.object(render.report_object(report, args.target, deep=args.deep, deeds=kept))
    return ExitCode.FAILED if report.blocking else ExitCode.DONE


def _show(report: Report, terminal: Terminal, args: argparse.Namespace) -> None:
    everything, fixing = args.everything, args.fix is not None
    for line, colour in render.report(report, everything=everything):
        terminal.line(line, colour)
    for line, colour in render.hints(report, everything=everything, fixing=fixing):
        terminal.line(line, colour)


# ------------------------------------------------------------------ asking the host


async def check(link: LinkPort, profile: Profile, terminal: Terminal, *, deep: bool) -> Report:
    """One preflight, with its progress on stderr.  Raises ConsoleError."""
    request = RunPreflight(0, profile, deep)
    async with _progress(terminal, deep) as on_progress:
        reply = await link.ask(request, SLOW, on_progress)
    if not isinstance(reply, Checked):
        raise error(
            "The agent's answer makes no sense",
            f"Asked RunPreflight, got {type(reply).__name__}.",
            "Replace the agent with `eagle3-console agent upgrade TARGET`.",
            "internal",
        )
    return reply.report


class _Progress:
    """The newest word of the host: a line that is written over, or one for each step if deep."""

    def __init__(self, terminal: Terminal, deep: bool) -> None:
        self._terminal = terminal
        self._deep = deep
        self._began = time.monotonic()
        self._newest: Probing | None = None

    def take(self, probing: Probing) -> None:
        self._newest = probing
        if self._deep and not self._terminal.err_rewrites:
            self._terminal.say(self._line())
        self.show()

    def show(self) -> None:
        self._terminal.status(self._line())

    def _line(self) -> str:
        return render.progress(self._newest, time.monotonic() - self._began)

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.show()


@contextlib.asynccontextmanager
async def _progress(terminal: Terminal, deep: bool) -> AsyncIterator[Callable[[Probing], None]]:
    progress = _Progress(terminal, deep)
    ticking = asyncio.create_task(progress.tick())
    try:
        yield progress.take
    finally:
        ticking.cancel()
        terminal.settle()


# ------------------------------------------------------------------ doing something about it


async def fix(
    link: LinkPort, profile: Profile, report: Report, args: argparse.Namespace, terminal: Terminal
) -> list[Deed]:
    """Go through what is offered, one question each; what was done.  Raises ConsoleError."""
    asked_for: Sequence[str] = args.fix
    _refuse_unknown(asked_for, report)
    found = offers(report, asked_for)
    if not found:
        terminal.say("nothing to fix: no check offers an action" + _of(asked_for))
        return []
    if not args.yes and not terminal.interactive:
        raise ConsoleError(_nobody(found), report)
    deeds: list[Deed] = []
    now: dict[str, Verdict] = {}
    for offer in found:
        made_again = now.get(offer.verdict.check)
        if made_again is not None and offer.action.id not in {a.id for a in made_again.actions}:
            continue  # what was done before it has settled it
        for text in render.offer(offer):
            terminal.say(text)
        if not args.yes and not terminal.confirm("Do this?", ""):
            terminal.say("  nothing was done", "dim")
            continue
        deed, verdict = await _take(link, profile, offer, terminal)
        deeds.append(deed)
        if verdict is not None:
            now[verdict.check] = verdict
        for text, colour in render.deed(deed):
            terminal.say(text, colour)
    return deeds


async def _take(
    link: LinkPort, profile: Profile, offer: Offer, terminal: Terminal
) -> tuple[Deed, Verdict | None]:
    """Have one action taken; a refusal is a deed that says why.  Raises ConsoleError (connect)."""
    title = offer.verdict.title
    # the agent has the request: whether it is done is no longer this command's to know
    terminal.on_interrupt = f"It may be done already: {offer.action.title}; check again"
    try:
        request = Act(0, profile, offer.verdict.check, offer.action)
        acted = await ask(link, request, Acted, _ACT)
    except ConsoleError as refusal:
        if refusal.problem.code == "connect":
            raise
        terminal.on_interrupt = ""
        problem = refusal.problem
        return Deed(offer.verdict.check, title, offer.action, problem=problem), None
    terminal.on_interrupt = ""
    said = acted.verdict.saw
    deed = Deed(offer.verdict.check, title, offer.action, acted.done, acted.helped, said)
    return deed, acted.verdict


def _refuse_unknown(asked_for: Sequence[str], report: Report) -> None:
    known = [v.check for v in report.verdicts]
    unknown = [name for name in asked_for if name not in known]
    if unknown:
        raise error(
            f"There is no check {unknown[0]!r}",
            f"the checks are {', '.join(known)}",
            "Name one of them after --fix.",
            "usage",
        )


def _of(asked_for: Sequence[str]) -> str:
    return f" ({', '.join(asked_for)})" if asked_for else ""


def _nobody(found: Sequence[Offer]) -> Problem:
    titles = "; ".join(f"{o.verdict.check}: {o.action.title}" for o in found[:8])
    return Problem(
        "Nobody can be asked here, so nothing was done",
        f"There is no terminal, and {len(found)} actions are offered: {titles}",
        "Read what each would do in a terminal, or add --yes to take them all.",
        "usage",
    )
