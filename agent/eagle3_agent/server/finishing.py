"""How runs end on request, and how their samples are cleared."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from eagle3_agent import clearing, ending, processes
from eagle3_agent.runs import Guardian
from eagle3_agent.summaries import Entry

from .agent import Agent
from .errors import Refusal
from .launch import Launcher
from .spawning import end_unstarted
from .waiting import until

#: Seconds that an abort may take before somebody is told that it did not work.
_ABORT = 30.0


async def abort(agent: Agent, launcher: Launcher, entry: Entry) -> str:
    """End a run, or what a lost one left, or take it out of the queue; what was done, in words.

    Raises Refusal.
    """
    agent.refresh(entry.summary.run)
    run = entry.summary.run
    if entry.summary.state == "lost":
        return await _end_leftovers(entry)
    if entry.ended:
        raise Refusal(
            f"Run {run} has ended",
            f"it is {entry.summary.state}",
            "There is nothing left to abort.",
            code="refused",
        )
    if entry.host != os.uname().nodename:
        raise Refusal(
            f"Run {run} is on another host",
            f"{entry.host} guards it, and this is {os.uname().nodename}",
            f"Connect to {entry.host} and abort it there.",
            code="refused",
        )
    async with launcher.lock:  # nobody can be starting it meanwhile
        guardian = entry.folder.guardian()
        if guardian is None:
            end_unstarted(entry.folder, "aborted", None)
            agent.refresh(run)
            return f"run {run} was taken out of the queue"
    await _end_guarded(agent, entry, guardian)
    return _how_it_ended(entry)


async def _end_guarded(agent: Agent, entry: Entry, guardian: Guardian) -> None:
    processes.send(processes.Identity(guardian.pid, guardian.start_time), signal.SIGTERM)

    def ended() -> bool:
        agent.refresh(entry.summary.run)
        return entry.ended

    if not await until(ended, _ABORT):
        raise Refusal(
            f"Run {entry.summary.run} does not end",
            f"its supervisor (pid {guardian.pid}) did not end it within {_ABORT:.0f} s",
            f"Look at that process and at {entry.folder.path / 'supervisor.log'} on the host.",
            code="failed",
        )


async def _end_leftovers(entry: Entry) -> str:
    """A lost run has no guard: end the processes that carry its mark, or are its worker's."""
    path = os.path.realpath(entry.folder.path)  # as the supervisor wrote it into the mark
    guardian = entry.folder.guardian()
    here = (os.uname().nodename, processes.boot_id())
    ours = guardian is not None and (guardian.host, guardian.boot_id) == here

    def work() -> tuple[int, list[processes.Process]]:
        spawned = entry.folder.standing().spawned
        worker = spawned.worker if spawned and ours else 0
        found = len(processes.marked(path, worker))
        return found, ending.end(lambda: processes.marked(path, worker), lambda *_: None)

    found, survivors = await asyncio.to_thread(work)
    run = entry.summary.run
    if survivors:
        raise Refusal(
            f"Processes of run {run} do not end",
            f"even SIGKILL left {_pids(p.pid for p in survivors)}: they wait in the kernel",
            "A reboot may be the only way out.",
            code="failed",
        )
    return f"run {run} was lost already; {found} processes that it left were ended"


def _how_it_ended(entry: Entry) -> str:
    end = entry.folder.exit()
    run, state = entry.summary.run, entry.summary.state
    if end is not None and end.survivors:
        return f"run {run} is {state}; processes that even SIGKILL left: {_pids(end.survivors)}"
    return f"run {run} is {state}; its worker and all its processes are gone"


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(map(str, list(pids)[:20]))


async def clear(agent: Agent, launcher: Launcher, entry: Entry, confirm: bool) -> clearing.Clearing:
    """Remove (or count) the samples of a run; raises Refusal."""
    agent.refresh()
    run, output = entry.summary.run, entry.summary.output_dir
    claim = f"output:{os.path.realpath(output)}"
    live = launcher.holder((claim,))
    if live:
        raise Refusal(
            f"The samples of run {run} are in use",
            f"run {live.entry.summary.run} is {live.entry.summary.state} and writes to {output}",
            "Abort that run first, or wait for its end.",
            code="busy",
        )
    lineage = {s.run for s in agent.index.summaries() if s.output_dir == output}
    async with launcher.cleared(claim):
        try:
            return await asyncio.to_thread(
                clearing.clear, Path(output), frozenset(lineage), confirm
            )
        except clearing.NotCleared as error:
            raise Refusal(
                f"The samples of run {run} are not cleared",
                str(error),
                "Nothing was touched. Look at the folder and remove by hand what should go.",
                code="refused",
            ) from None
