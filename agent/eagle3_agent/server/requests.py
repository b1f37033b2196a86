"""What each message of a client does: one function each, from a message to its reply."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_agent import archive, paths, summaries
from eagle3_agent.preflight.check import Progress
from eagle3_agent.protocol import VERSION, Message, ProtocolError, dumps
from eagle3_agent.protocol.messages import (
    Abort,
    Act,
    AgentStatus,
    Cancel,
    Checked,
    Clear,
    Cleared,
    Detail,
    Done,
    GetCompat,
    GetRun,
    Hello,
    ListRuns,
    Ping,
    Pong,
    Probing,
    Resume,
    RunPreflight,
    Runs,
    SampleHost,
    Start,
    Status,
    StopAgent,
    Subscribe,
    Telemetry,
    Unsubscribe,
    Verified,
    Verify,
    WatchHost,
    Welcome,
)
from eagle3_agent.protocol.values import Profile, RunSummary
from eagle3_agent.summaries import Entry

from . import acting, finishing, probing, streams
from .agent import Agent
from .client import Client
from .errors import Refusal
from .launch import Launcher, Wish

#: Streams of one client at a time.
_STREAMS_MAX = 64

#: Bytes of summaries in one reply: 10,000 of them do not fit one line of the wire.
_PAGE = 2 << 20


@dataclass(frozen=True)
class Desk:
    """What requests are answered with."""

    agent: Agent
    launcher: Launcher
    acting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an action is taken."""


async def answer(desk: Desk, client: Client, message: Message) -> Message:
    """The reply; raises Refusal."""
    handler = _HANDLERS.get(type(message))
    if handler is None:
        raise Refusal(
            "The agent did not understand a message",
            f"{type(message).__name__} is not a request",
            "Send a request.",
        )
    return await handler(desk, client, message)


def entry_of(agent: Agent, run: str) -> Entry:
    """Raises Refusal for a run that does not exist."""
    entry = agent.index.find(run)
    if entry is None or not entry.folder.path.is_dir():
        agent.refresh()
        entry = agent.index.find(run)
    if entry is None:
        newest = agent.index.find("last")
        known = f"the newest is {newest.summary.run}" if newest else "there is none yet"
        raise Refusal(
            f"There is no run {run!r:.60}",
            f"{paths.runs_dir()} does not hold it; {known}",
            "List the runs with `eagle3-console runs TARGET`.",
            code="not-found",
        )
    return entry


def unreadable(entry: Entry, error: Exception) -> Refusal:
    """What a request says that needs a ``run.json`` which is gone or broken."""
    return Refusal(
        f"The record of run {entry.summary.run} cannot be read",
        f"{entry.folder.path / 'run.json'}: {error}",
        "Put the file back, or move the run's folder away: no other run needs it.",
        code="failed",
    )


def profile_of(entry: Entry) -> Profile:
    """What the run was asked to do; raises Refusal."""
    try:
        return entry.folder.record().profile
    except (OSError, ProtocolError) as error:
        raise unreadable(entry, error) from None


async def _hello(desk: Desk, client: Client, message: Hello) -> Message:
    if message.version != VERSION:
        raise Refusal(
            "Console and agent speak different versions of the wire",
            f"the agent on {platform.node()} speaks {VERSION}, the console {message.version}",
            "Let the console replace it: `eagle3-console agent upgrade TARGET`.",
        )
    return Welcome(
        re=message.id,
        version=VERSION,
        archive=archive.name(),
        pid=os.getpid(),
        host=platform.node(),
        python=platform.python_version(),
        started=desk.agent.started,
        now=time.time(),
    )


async def _ping(desk: Desk, client: Client, message: Ping) -> Message:
    return Pong(message.id)


async def _list(desk: Desk, client: Client, message: ListRuns) -> Message:
    await desk.agent.loaded.wait()
    desk.agent.refresh()
    # from here on changes are pushed: nothing can fall between the list and the watch
    client.watches_runs = client.watches_runs or message.watch
    found = desk.agent.index.summaries()
    if message.before is not None:
        found = [s for s in found if s.number < message.before]
    page = _newest(found)
    return Runs(message.id, page, older=len(found) - len(page))


def _newest(found: list[RunSummary]) -> tuple[RunSummary, ...]:
    """As many of the newest as one reply holds, oldest first."""
    page: list[RunSummary] = []
    size = 0
    for summary in map(summaries.short, reversed(found)):
        size += len(dumps(summary))
        if size > _PAGE and page:
            break
        page.append(summary)
    return tuple(reversed(page))


async def _get(desk: Desk, client: Client, message: GetRun) -> Message:
    entry = entry_of(desk.agent, message.run)
    desk.agent.refresh(entry.summary.run)
    try:
        return Detail(message.id, await asyncio.to_thread(summaries.detail, entry))
    except (OSError, ProtocolError) as error:
        raise unreadable(entry, error) from None


async def _subscribe(desk: Desk, client: Client, message: Subscribe) -> Message:
    entry = entry_of(desk.agent, message.run)
    if message.offset < 0 or message.id in client.streams:
        raise Refusal(
            "The stream cannot be opened",
            f"offset {message.offset}, id {message.id}",
            "Use an offset of 0 or more and a fresh id.",
        )
    if len(client.streams) >= _STREAMS_MAX:
        raise Refusal(
            "Too many streams on one connection",
            f"{_STREAMS_MAX} are open",
            "Unsubscribe from one that is no longer read.",
        )
    client.open_stream(
        message.id,
        streams.pump(
            message.id,
            entry.folder.stream(message.stream),
            message.offset,
            lambda: entry.ended,
            client.send,
        ),
    )
    return Done(message.id)


async def _unsubscribe(desk: Desk, client: Client, message: Unsubscribe) -> Message:
    client.close_stream(message.sub)
    return Done(message.id)


async def _status(desk: Desk, client: Client, message: AgentStatus) -> Message:
    await desk.agent.loaded.wait()
    desk.agent.refresh()
    return Status(
        re=message.id,
        archive=archive.name(),
        pid=os.getpid(),
        started=desk.agent.started,
        folder=str(paths.state_dir()),
        clients=len(desk.agent.clients),
        running=tuple(e.summary.run for e in desk.agent.index.in_state("running")),
        queued=tuple(e.summary.run for e in desk.agent.index.in_state("queued")),
    )


async def _preflight(desk: Desk, client: Client, message: RunPreflight) -> Message:
    async def tell(now: Progress) -> None:
        await client.send(Probing(message.id, now.done, now.total, now.waiting))

    work = probing.preflight(message.profile, message.deep, tell)
    outcome = await (client.while_heard(work) if message.deep else work)
    return Checked(message.id, outcome.report)


async def _cancel(desk: Desk, client: Client, message: Cancel) -> Message:
    found = client.cancel(message.asked)
    return Done(message.id, "" if found else "it is not under way")


async def _act(desk: Desk, client: Client, message: Act) -> Message:
    await desk.agent.loaded.wait()
    return await acting.act(desk.agent, desk.launcher, desk.acting, client.name, message)


async def _start(desk: Desk, client: Client, message: Start) -> Message:
    await desk.agent.loaded.wait()
    wish = Wish(message.profile, message.force, message.queue)
    return replace(await desk.launcher.start(wish), re=message.id)


async def _resume(desk: Desk, client: Client, message: Resume) -> Message:
    await desk.agent.loaded.wait()
    entry = entry_of(desk.agent, message.run)
    run = entry.summary.run
    if not entry.ended:
        raise Refusal(
            f"Run {run} has not ended",
            f"it is {entry.summary.state}",
            "Abort it first, or wait for its end.",
            code="busy",
        )
    profile = profile_of(entry)
    wish = Wish(profile, message.force, message.queue, resumes=run)
    return replace(await desk.launcher.start(wish), re=message.id)


async def _abort(desk: Desk, client: Client, message: Abort) -> Message:
    entry = entry_of(desk.agent, message.run)
    return Done(message.id, await finishing.abort(desk.agent, desk.launcher, entry))


async def _clear(desk: Desk, client: Client, message: Clear) -> Message:
    await desk.agent.loaded.wait()
    entry = entry_of(desk.agent, message.run)
    done = await finishing.clear(desk.agent, desk.launcher, entry, message.confirm)
    return Cleared(
        re=message.id,
        removed=message.confirm,
        files=done.files,
        bytes=done.bytes,
        folder=entry.summary.output_dir,
        kept=done.kept,
    )


async def _watch_host(desk: Desk, client: Client, message: WatchHost) -> Message:
    client.watch_host(message.interval)
    desk.agent.feed.poke()
    return Done(message.id)


async def _sample_host(desk: Desk, client: Client, message: SampleHost) -> Message:
    return Telemetry(await desk.agent.feed.once(), re=message.id)


async def _compat(desk: Desk, client: Client, message: GetCompat) -> Message:
    return await probing.compat(message.profile, message.id)


async def _verify(desk: Desk, client: Client, message: Verify) -> Message:
    entry = entry_of(desk.agent, message.run)
    if not entry.ended:
        raise Refusal(
            f"Run {entry.summary.run} has not ended",
            f"it is {entry.summary.state}, and its samples are still being written",
            "Verify it once it has ended.",
            code="busy",
        )
    if not 0 <= message.samples <= 100_000:
        raise Refusal(
            "The number of samples is out of range",
            f"{message.samples} samples were asked for",
            "Ask for 0 to 100000; with 0 the files alone are checked.",
        )
    if message.seed is not None and not 0 <= message.seed < 1 << 63:
        raise Refusal(
            "The seed is out of range",
            f"{message.seed} was given",
            "Give a whole number from 0, or none: one is drawn then, and the report says it.",
        )
    profile = profile_of(entry)
    async with desk.agent.verifying:  # each loads a model
        return Verified(message.id, await probing.verify(entry.folder, profile, message))


async def _stop(desk: Desk, client: Client, message: StopAgent) -> Message:
    await desk.agent.loaded.wait()
    if message.only_idle:
        desk.agent.refresh()
        why = desk.agent.busy(besides=client)
        if why:
            raise Refusal("The agent is in use", why, "It goes on as it is.", code="busy")
    async with desk.acting:  # an action is not left half way
        desk.agent.stop()
    return Done(message.id, "the agent leaves; runs go on without it")


_HANDLERS: dict[type[Any], Callable[[Any, Any, Any], Awaitable[Message]]] = {
    Hello: _hello,
    Ping: _ping,
    ListRuns: _list,
    GetRun: _get,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    AgentStatus: _status,
    StopAgent: _stop,
    RunPreflight: _preflight,
    Act: _act,
    Start: _start,
    Resume: _resume,
    Abort: _abort,
    Clear: _clear,
    WatchHost: _watch_host,
    SampleHost: _sample_host,
    GetCompat: _compat,
    Verify: _verify,
    Cancel: _cancel,
}
