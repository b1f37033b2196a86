"""An action that a check offered: taken in a process of its own, one at a time, and written down.

actions.jsonl    beside the agent's log: who asked for what and when, what was done or why not
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3_agent import archive, journal, paths, processes
from eagle3_agent.preflight.actions.perform import Request, Result
from eagle3_agent.protocol import MAX_LINE, ProtocolError, dumps, from_json
from eagle3_agent.protocol.messages import Act, Acted
from eagle3_agent.protocol.values import Action, Problem

from .agent import Agent
from .children import Answer, ask
from .errors import Refusal
from .launch import Launcher

#: Seconds: two rounds of probes, a unit that takes its 90 s to stop, and some.
_TIMEOUT = 180.0

#: The record is begun anew past this size (bytes); the one before is kept as ``actions.jsonl.1``.
_RECORD_MAX = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A line of ``actions.jsonl``."""

    t: float
    """Epoch seconds."""
    what: str
    """``asked``, then ``done``, ``refused``, ``failed`` or (the agent was gone) ``unheard``."""
    who: str
    check: str
    profile: str
    action: Action
    lines: tuple[str, ...] = ()
    """What was done, or why nothing was."""


async def act(agent: Agent, launcher: Launcher, turn: asyncio.Lock, who: str, asked: Act) -> Acted:
    """Take it, whether or not the client is still there to hear of it; raises Refusal.

    ``turn`` is held meanwhile: one action at a time.
    """
    return await asyncio.shield(_in_turn(agent, launcher, turn, who, asked))


def record_path() -> Path:
    return paths.agent_dir() / "actions.jsonl"


async def _in_turn(
    agent: Agent, launcher: Launcher, turn: asyncio.Lock, who: str, asked: Act
) -> Acted:
    who = f"{processes.user(os.getpid())}, {processes.printable(who.encode()[:80]) or 'a client'}"
    async with turn:
        try:
            _note_unheard(agent)
            _write(agent, "asked", who, asked, ())  # before: what is not written is not done
        except OSError as error:
            raise _not_written(error) from None
        try:
            async with _no_run_uses(agent, launcher, asked.action):
                result = await _perform(asked)
        except Refusal as refusal:
            _note(agent, "failed", who, asked, (refusal.problem.happened,))
            raise
        except Exception as error:
            _note(agent, "failed", who, asked, (f"{type(error).__name__}: {error}"[:300],))
            raise
        if result.verdict is None:
            problem = result.refusal or Problem("The action was not taken", "without a word", "")
            _note(agent, "refused", who, asked, (problem.happened,))
            raise Refusal(problem.title, problem.happened, problem.todo, code=problem.code)
        unwritten = _note(agent, "done", who, asked, result.done)
        return Acted(asked.id, (*result.done, *unwritten), result.verdict, result.helped)


def _not_written(error: OSError) -> Refusal:
    return Refusal(
        "The action is not taken",
        f"{record_path()}: {error.strerror or error}",
        "Each action is written down first: make room for the agent's folder.",
        code="failed",
    )


async def _perform(asked: Act) -> Result:
    request = dumps(Request(asked.profile, asked.check, asked.action)).encode("ascii")
    answer = await ask(archive.command("act"), stdin=request, timeout=_TIMEOUT)
    try:
        return from_json(Result, json.loads(answer.stdout))
    except (ValueError, RecursionError, ProtocolError):
        raise _broke_off(answer) from None


def _broke_off(answer: Answer) -> Refusal:
    late = answer.status is None
    return Refusal(
        "The action did not come to its end",
        f"it took longer than {_TIMEOUT:g} s and was ended"
        if late
        else f"its process left with status {answer.status}: {answer.last_words()}",
        "It may have been taken in part: run the preflight and look.",
        code="failed",
    )


@contextlib.asynccontextmanager
async def _no_run_uses(agent: Agent, launcher: Launcher, action: Action) -> AsyncIterator[None]:
    """No run that goes on or waits writes to what is moved, and none begins to meanwhile."""
    if action.kind != "move-aside":
        yield
        return
    agent.refresh()
    # an offer's path is real, and who follows no link need not ask the disk, which may hang
    folder = os.path.normpath(action.path)
    for entry in agent.index.in_state("running", "queued"):
        for claim in entry.claims:
            kind, _, output = claim.partition(":")
            if kind == "output" and f"{output}/".startswith(f"{folder}/"):
                raise Refusal(
                    "The folder is in use",
                    f"run {entry.summary.run} is {entry.summary.state} and writes to {output}",
                    "Abort that run first, or wait for its end.",
                    code="busy",
                )
    async with launcher.cleared(f"output:{folder}"):
        yield


def _note(agent: Agent, what: str, who: str, asked: Act, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The same where it is too late to refuse: a line for the client where it cannot be written."""
    try:
        _write(agent, what, who, asked, lines)
    except OSError as error:
        agent.log(f"{record_path()}: {error}")
        return (f"that could not be written down in {record_path()}: {error.strerror or error}",)
    return ()


def _note_unheard(agent: Agent) -> None:
    """An action whose agent was killed meanwhile went on without it: say so; raises OSError."""
    last = _last()
    if last is None or last.what != "asked":
        return
    lines = ("the agent that took it ended before it heard how it went",)
    entry = replace(last, t=time.time(), what="unheard", lines=lines)
    journal.append_bytes(record_path(), dumps(entry).encode("ascii") + b"\n")
    agent.log(
        f"action unheard: {processes.printable(last.action.title.encode('utf-8', 'replace'))}"
    )


def _last() -> Entry | None:
    """The newest entry of the record, if it can be read."""
    try:
        with open(record_path(), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * MAX_LINE))
            lines = file.read().splitlines()
        return from_json(Entry, json.loads(lines[-1])) if lines else None
    except (OSError, ValueError, RecursionError, ProtocolError):
        return None


def _write(agent: Agent, what: str, who: str, asked: Act, lines: tuple[str, ...]) -> None:
    """A line in the record and in the log; raises OSError."""
    path = record_path()
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _RECORD_MAX:
            os.replace(path, path.with_name(f"{path.name}.1"))
    entry = Entry(time.time(), what, who, asked.check, asked.profile.name, asked.action, lines)
    journal.append_bytes(path, dumps(entry).encode("ascii") + b"\n")
    told = "; ".join(lines)
    title = processes.printable(asked.action.title.encode("utf-8", "replace"))
    agent.log(f"action {what} for {who}: {title} (check {asked.check!r:.40}) {told:.1000}")
