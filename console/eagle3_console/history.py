"""A host's whole history, which may need several replies: a line of the wire has a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from eagle3_agent.protocol import Message
from eagle3_agent.protocol.messages import ListRuns, Runs
from eagle3_agent.protocol.values import RunSummary


async def all_runs(
    ask: Callable[[Message], Awaitable[Message]], *, watch: bool = False
) -> tuple[RunSummary, ...]:
    """Every run, oldest first; ``watch`` as in ListRuns.  Raises what ``ask`` raises."""
    found: tuple[RunSummary, ...] = ()
    before: int | None = None
    while True:
        reply = await ask(ListRuns(0, watch=watch and before is None, before=before))
        if not isinstance(reply, Runs):
            return found
        # a host's numbers are not to be trusted: each page must lie before the last one
        page = tuple(r for r in reply.runs if before is None or r.number < before)
        found = (*page, *found)
        if not (page and reply.older):
            return found
        before = min(run.number for run in page)
