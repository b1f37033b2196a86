"""Takes one action, in a process of its own: check again, act, check again.

What is done is what the check offers now.  A request only chooses among that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import IO

from eagle3_agent.preflight import catalogue, runner, usable
from eagle3_agent.preflight.check import Ask, Check
from eagle3_agent.preflight.text import listed, show
from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.values import Action, Problem, Profile, Verdict

from . import files, signals, stopping
from .offers import same
from .refused import NotTaken

_REQUEST_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One line on stdin."""

    profile: Profile
    check: str
    action: Action


@dataclass(frozen=True)
class Result:
    """One line on stdout: what was done, or why nothing was."""

    done: tuple[str, ...] = ()
    verdict: Verdict | None = None
    helped: bool = False
    refusal: Problem | None = None


def main(stdin: IO[bytes], stdout: IO[bytes]) -> int:
    """Status 0 when the action was taken, 1 when it was not, 2 for a request that is none."""
    try:
        body = stdin.read(_REQUEST_LIMIT + 1)
        request = from_json(Request, json.loads(body))
        usable.demand(request.profile)
    except (ValueError, RecursionError, ProtocolError) as error:
        refusal = Problem("The action cannot be read", str(error)[:300], "", "usage")
        stdout.write(dumps(Result(refusal=refusal)).encode() + b"\n")
        return 2
    result = perform(request)
    stdout.write(dumps(result).encode() + b"\n")
    stdout.flush()
    return 1 if result.refusal else 0


def perform(request: Request) -> Result:
    """Never raises for what the host does; a refusal means that nothing was changed."""
    check = next((c for c in catalogue.CHECKS if c.id == request.check), None)
    try:
        if check is None:
            raise NotTaken("There is no such check", show(request.check, 60), "Name one that is.")
        before = look(check, request.profile)
        chosen = choose(before, request.action)
        done = act(chosen)
    except NotTaken as refused:
        return Result(refusal=refused.problem)
    after = look(check, request.profile)
    offered = any(same(request.action, a) for a in after.actions)
    return Result(done, after, helped=after.status not in ("block", "warn") or not offered)


def look(check: Check, profile: Profile) -> Verdict:
    """This check alone, by its own probes."""
    ask = Ask(profile, deep=not check.applies(Ask(profile)))
    facts, seconds = runner.gather(runner.probes_of((check,)), ask)
    return runner.judge((check,), facts, profile, seconds)[0]


def choose(now: Verdict, asked: Action) -> Action:
    """What is offered now and is the same as what was asked for; NotTaken when nothing is.

    The name to move to is the one that a person has read: the offer's own form, made for this path.
    """
    for offered in now.actions:
        if same(asked, offered):
            return replace(offered, aside=asked.aside)
    saw = show(now.saw.replace("\n", "; "), 300)
    others = listed([show(a.title, 100) for a in now.actions], 3)
    raise NotTaken(
        "That is not offered any more",
        f"{now.check} says {now.status} now: {saw}" + (f"; it offers: {others}" if others else ""),
        "Nothing was changed. Run the preflight again and choose from what it shows.",
    )


def act(action: Action) -> tuple[str, ...]:
    """Take an action that was just offered; NotTaken where its target is another by now."""
    if action.kind == "terminate":
        return signals.end(action.processes)
    if action.kind == "stop-unit":
        return stopping.stop(action.unit)
    if action.kind == "remove-lock":
        return files.remove_lock(action)
    return files.move_aside(action)
