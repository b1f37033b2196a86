"""How runs begin, or wait for their turn.

A run is spawned only here, one at a time, so that two of them cannot claim
the same GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from eagle3_agent import claims, runs
from eagle3_agent.preflight.check import Outcome
from eagle3_agent.protocol.messages import Started
from eagle3_agent.protocol.values import ErrorInfo, Profile, Report, Verdict
from eagle3_agent.runs import RunFolder, RunRecord
from eagle3_agent.summaries import Entry

from . import probing, script_state
from .agent import Agent
from .errors import Refusal
from .spawning import end_unstarted, spawn, tell_preflight

#: Checks that fail while another run holds GPUs and memory: a queued run waits for them, and is
#: checked again when its turn has come.
PASSING = frozenset({"gpu-clean", "leftovers", "gpu-modes", "gpu-memory", "host-memory", "shm"})

#: A queued run whose turn has come checks again this often, while only such checks block it.
_TURN_TRIES = 6
_TURN_PAUSE = 10.0


@dataclass(frozen=True)
class Wish:
    """What a client asks to be run."""

    profile: Profile
    force: tuple[str, ...] = ()
    queue: bool = False
    resumes: str = ""


@dataclass(frozen=True)
class Holder:
    """Who has, or waits for, something that another run claims."""

    entry: Entry
    claim: str


class Launcher:
    """Starts and queues the runs of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.lock = asyncio.Lock()
        """Held while a run begins, or is kept from beginning."""
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._supervisors: list[subprocess.Popen[bytes]] = []
        self._clearing: set[str] = set()

    # ------------------------------------------------------------ start

    async def start(self, wish: Wish) -> Started:
        """Check, claim, write the folder, spawn; or queue.  Raises Refusal."""
        mine = await self._claims_of(wish.profile)
        holder = self.holder(mine)
        if holder and not wish.queue:
            raise _busy(holder)
        began = time.time()
        outcome = await probing.preflight(wish.profile)
        known = {v.check for v in outcome.report.verdicts}
        unknown = [name for name in wish.force if name not in known]
        if unknown:
            raise _no_check(unknown[0], known)
        spared = {*wish.force, *(PASSING if holder else ())}
        blocking = [v for v in outcome.report.blocking if v.check not in spared]
        if blocking:
            raise _blocked(blocking, outcome.report)
        script = await script_state.of(wish.profile)
        outcome = replace(outcome, environment={**outcome.environment, **script})
        # from here on it happens, whether or not the client is still there to hear of it
        return await asyncio.shield(self._create(wish, mine, outcome, began))

    async def _claims_of(self, profile: Profile) -> tuple[str, ...]:
        sample = await self._agent.feed.once()
        return claims.of(profile, sample.gpus, self._agent.feed.silent, os.environ)

    def holder(self, mine: tuple[str, ...]) -> Holder | None:
        """The first run, going on or queued, that claims something of ``mine``."""
        for entry in self._agent.index.in_state("running", "queued"):
            claim = self._clash(mine, entry)
            if claim:
                return Holder(entry, claim)
        return None

    def _in_the_way(self, waiting: Entry) -> bool:
        """Whether a queued run must go on waiting: for those that began, or queued before it."""
        for entry in self._agent.index.in_state("running", "queued"):
            began = entry.summary.state == "running" or entry.summary.run in self._turns
            before = entry.summary.number < waiting.summary.number
            if entry is not waiting and (began or before) and self._clash(waiting.claims, entry):
                return True
        return False

    def _clash(self, mine: tuple[str, ...], entry: Entry) -> str:
        return claims.clash(mine, entry.claims, entry.host == os.uname().nodename)

    async def _create(
        self, wish: Wish, mine: tuple[str, ...], outcome: Outcome, began: float
    ) -> Started:
        async with self.lock:
            self._agent.refresh()
            holder = self.holder(mine)
            self._refuse_cleared(mine)
            if holder and not wish.queue:
                raise _busy(holder)
            report = outcome.report
            folder = runs.create(
                wish.profile,
                outcome.engine,
                attempt=self._attempt(wish.profile),
                preflight=report,
                forced=tuple(v.check for v in report.blocking if v.check in wish.force),
                claims=mine,
                environment=outcome.environment,
                resumes=wish.resumes,
            )
            tell_preflight(folder, outcome, began)
            try:
                if holder is None:
                    self._supervisors.append(await spawn(folder))
            finally:
                self._agent.refresh()
            return Started(0, folder.run, queued=holder is not None, report=report)

    def _attempt(self, profile: Profile) -> int:
        """Attempts with the same profile on the same model count on, wherever they write."""
        mine = (profile.name, profile.model.path)
        same = [s for s in self._agent.index.summaries() if (s.profile, s.model) == mine]
        return 1 + max((s.attempt for s in same), default=0)

    # ------------------------------------------------------------ clearing keeps runs away

    @contextlib.asynccontextmanager
    async def cleared(self, claim: str) -> AsyncIterator[None]:
        """No run with this output begins meanwhile; raises Refusal if it is being cleared."""
        async with self.lock:
            self._refuse_cleared((claim,))
            self._clearing.add(claim)
        try:
            yield
        finally:
            self._clearing.discard(claim)

    def _refuse_cleared(self, mine: tuple[str, ...]) -> None:
        for claim in mine:
            if claim in self._clearing:
                what = f"{claims.describe(claim)} is being cleared"
                raise Refusal("The output is busy", what, "Try again in a moment.", code="busy")

    # ------------------------------------------------------------ the queue

    def look_after(self) -> None:
        """Take note of ended supervisors, and let queued runs begin whose turn has come."""
        self._supervisors = [s for s in self._supervisors if s.poll() is None]
        if self.lock.locked():
            return
        for entry in self._agent.index.in_state("queued"):
            run = entry.summary.run
            mine = entry.host == os.uname().nodename and run not in self._turns
            if mine and not self._in_the_way(entry):
                self._turns[run] = asyncio.create_task(self._take_turn(entry))

    async def _take_turn(self, entry: Entry) -> None:
        """Check a queued run again, now that it can begin, and begin it."""
        folder = entry.folder
        try:
            await self._begin_queued(folder, folder.record())
        except Refusal as refusal:
            if folder.exit() is None and folder.guardian() is None:
                problem = refusal.problem
                text = f"{problem.title}: {problem.happened}"
                end_unstarted(folder, "failed", ErrorInfo("PreflightFailed", text))
        except Exception as error:
            self._agent.log_fault(f"queued run {folder.run} could not begin", error)
            await asyncio.sleep(_TURN_PAUSE)
        finally:
            self._turns.pop(folder.run, None)
            self._agent.refresh(folder.run)

    async def _begin_queued(self, folder: RunFolder, record: RunRecord) -> None:
        for tries_left in reversed(range(_TURN_TRIES)):
            began = time.time()
            outcome = await probing.preflight(record.profile)
            blocking = [v for v in outcome.report.blocking if v.check not in record.forced]
            if not blocking or any(v.check not in PASSING for v in blocking):
                break
            if tries_left:
                await asyncio.sleep(_TURN_PAUSE)  # the run before may still give memory back
        async with self.lock:
            if folder.exit() is not None or folder.guardian() is not None:
                return
            folder.write_preflight(outcome.report)
            tell_preflight(folder, outcome, began)
            if blocking:
                seen = "; ".join(f"{v.check}: {v.saw}" for v in blocking)[:1000]
                end_unstarted(folder, "failed", ErrorInfo("PreflightBlocked", seen))
            else:
                self._supervisors.append(await spawn(folder))


def _busy(holder: Holder) -> Refusal:
    held = holder.entry.summary
    what = claims.describe(holder.claim)
    state = "runs" if held.state == "running" else "waits in the queue"
    return Refusal(
        f"{what[0].upper()}{what[1:]} is taken",
        f"run {held.run} ({held.profile}) {state} and claims it",
        f"Abort run {held.run}, wait for it, or start with --queue.",
        code="busy",
    )


def _no_check(name: str, known: set[str]) -> Refusal:
    return Refusal(
        f"There is no check {name!r:.60}",
        f"the checks are {', '.join(sorted(known))}",
        "Name one of them with --force.",
        code="usage",
    )


def _blocked(blocking: list[Verdict], report: Report) -> Refusal:
    force = " ".join(f"--force {v.check}" for v in blocking)
    count = "1 check blocks" if len(blocking) == 1 else f"{len(blocking)} checks block"
    return Refusal(
        f"{count} the start",
        ", ".join(f"{v.check} ({v.title})" for v in blocking),
        f"Do what each check says, or start over them with {force}.",
        code="blocked",
        report=report,
    )
