"""A link to a host's agent: connect, ask, stream, watch, and come back after every loss.

What one connection says is ``session``'s; how the agent gets to the host is
``deploy``'s; the states are ``linkstate``'s.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import time
from collections.abc import AsyncIterator, Callable

from eagle3_agent.protocol import VERSION, Message
from eagle3_agent.protocol.messages import (
    AgentStatus,
    Chunk,
    GetCompat,
    GetRun,
    Hello,
    ListRuns,
    RunChanged,
    RunPreflight,
    SampleHost,
    StreamName,
    Subscribe,
    Telemetry,
    WatchHost,
    Welcome,
)
from eagle3_agent.protocol.values import RunSummary

from .archive import Archive, agent_archive
from .deploy import Attached, attach
from .errors import ConsoleError, error
from .history import all_runs
from .hosts import Host, Refused, connect_error, printable
from .linkstate import Connecting, Kept, LinkState, Live, Offline, Piece, Reconnecting
from .session import Feed, OnProgress, Session, greet

__all__ = ["Connecting", "Link", "LinkState", "Live", "Offline", "Piece", "Reconnecting"]

FIRST_DELAY = 0.5
LAST_DELAY = 15.0
"""Seconds before the first and, at most, before any later attempt to reconnect."""
_CLIENT = "eagle3-console"

#: Asking these twice changes nothing, so a lost link does not fail them.
_REPEATABLE = (AgentStatus, GetCompat, GetRun, ListRuns, RunPreflight, SampleHost)

_log = logging.getLogger(__name__)
# without a handler, Python would write warnings into the terminal that the TUI draws on
for _name in ("eagle3_console", "asyncssh"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Link:
    """One host's agent, for as long as the console wants it."""

    def __init__(
        self,
        host: Host,
        *,
        read_only: bool = False,
        on_state: Callable[[LinkState], None] | None = None,
        on_push: Callable[[RunChanged | Telemetry], None] | None = None,
        archive: Archive | None = None,
        start_agent: bool = True,
    ) -> None:
        self.on_state = on_state
        self.on_push = on_push
        self.warnings: tuple[str, ...] = ()
        """What did not stop the connection and that the user should know."""
        self.kept: Kept | None = None
        """A link by itself keeps nothing: see ``remembering``."""
        self._host = host
        self._read_only = read_only
        self._archive = archive
        self._start_agent = start_agent
        self._state: LinkState = Connecting("Connecting")
        self._session: Session | None = None
        self._live = asyncio.Event()
        """Set while there is a session, and for good once there will be none."""
        self._ended: ConsoleError | None = None
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._watched: tuple[bool, float] | None = None
        self._told: dict[str, RunSummary] = {}
        """What is known of each run that is watched, by its id."""

    # ------------------------------------------------------------------ state

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def agent_outdated(self) -> bool:
        """The running agent is not the one that this console ships; it serves nevertheless."""
        state = self._state
        return (
            isinstance(state, Live)
            and self._archive is not None
            and state.welcome.archive != self._archive.name
        )

    def _tell(self, state: LinkState) -> None:
        self._state = state
        if self.on_state is not None:
            try:
                self.on_state(state)
            except Exception:
                _log.exception("a listener failed on %s", type(state).__name__)

    def _latency(self, seconds: float) -> None:
        if isinstance(self._state, Live):
            self._tell(Live(seconds, self._state.welcome))

    def _push(self, message: RunChanged | Telemetry) -> None:
        if isinstance(message, RunChanged):
            self._told[message.summary.run] = message.summary
        if self.on_push is not None:
            self.on_push(message)

    # ------------------------------------------------------------------ connecting

    async def connect(self) -> Welcome:
        """Connect once, installing and starting the agent when needed, and stay connected.

        Raises ConsoleError when the first connection fails; a later loss is told through
        ``on_state`` and mended in the background.  After Offline it may be called again.
        """
        if self._closed or (self._ended is None and self._keeper is not None):
            raise error(
                "This link is in use or closed",
                "connect() came twice.",
                "Make a new link.",
                "internal",
            )
        self._ended = self._keeper = None
        self._live.clear()
        try:
            session, welcome = await self._open(lambda step: self._tell(Connecting(step)))
        except ConsoleError as problem:
            self._end(problem)
            raise
        if self._closed:
            await session.close()
            await self._host.close()
            raise self._gone()
        self._enter(session, welcome)
        self._keeper = asyncio.create_task(self._keep(session))
        return welcome

    async def _open(self, on_step: Callable[[str], None]) -> tuple[Session, Welcome]:
        if self._archive is None:
            self._archive = await asyncio.to_thread(agent_archive)
        attached = await attach(self._host, self._archive, on_step, start=self._start_agent)
        self._note(attached)
        session = Session(
            attached.channel, attached.rest, self._host.name, self._push, self._latency
        )
        session.start()
        try:
            welcome = await greet(session, Hello(0, VERSION, _CLIENT, self._read_only), VERSION)
        except BaseException:
            await session.close()
            raise
        return session, welcome

    def _note(self, attached: Attached) -> None:
        notes = list(self._host.notices)
        if attached.noise.strip():
            notes.append(
                f"The shell's start-up files on {self._host.name} print "
                f"{len(attached.noise)} bytes where no terminal is: "
                f"“{printable(attached.noise, 120)}”"
            )
        self.warnings = tuple(notes)

    def _enter(self, session: Session, welcome: Welcome) -> None:
        self._session = session
        self._tell(Live(None, welcome))
        self._live.set()

    def _end(self, why: ConsoleError) -> None:
        """Nothing is tried any more: everybody who waits is told why."""
        self._ended = why
        self._session = None
        self._live.set()
        self._tell(Offline(time.time(), why.problem))

    # ------------------------------------------------------------------ staying connected

    async def _keep(self, session: Session) -> None:
        """Wait for each loss and mend it, until closed or told to stay away."""
        while True:
            why = await asyncio.shield(session.lost)
            self._leave(session)
            mended = await self._mend(why, session)
            if mended is None:
                return
            session = mended

    async def _mend(self, why: ConsoleError, lost: Session | None) -> Session | None:
        since, attempt = time.time(), 0
        while True:
            attempt += 1
            pause = asyncio.create_task(self._pause(attempt, since, why))
            try:
                if lost is not None:
                    # a connection that lost one channel may be half dead: nothing of it is kept
                    await lost.close()
                    await self._host.close()
                    lost = None
                await pause
                session, welcome = await self._open(lambda step: None)
            except Refused as problem:
                self._end(problem)
                return None
            except ConsoleError as problem:
                why = problem
                continue
            except Exception as fault:
                # whatever else goes wrong, somebody waits for this link
                _log.exception("reconnecting failed")
                why = connect_error(
                    f"Reconnecting to {self._host.name} failed",
                    f"{type(fault).__name__}: {printable(str(fault))}",
                    "The console goes on trying; if that does not help, start it again.",
                )
                continue
            finally:
                pause.cancel()
            try:
                await self._renew_watch(session)
            except ConsoleError as problem:
                why, lost = problem, session
                continue
            except BaseException:
                await session.close()
                raise
            self._enter(session, welcome)
            return session

    async def _pause(self, attempt: int, since: float, why: ConsoleError) -> None:
        delay = backoff(attempt, random.random())  # noqa: S311
        self._tell(Reconnecting(attempt, time.time() + delay, since, why.problem))
        await asyncio.sleep(delay)

    async def close(self) -> None:
        """End every stream and the connection; the agent and its runs go on."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        session = self._session
        if self._ended is None:
            self._end(self._gone())
        if session is not None:
            await session.close()
        await self._host.close()

    def _gone(self) -> ConsoleError:
        return connect_error(
            f"The link to {self._host.name} is closed", "It was closed here.", "Connect again."
        )

    # ------------------------------------------------------------------ asking

    async def _up(self, timeout: float | None) -> Session:
        """The live session, waiting for it.  Raises ConsoleError."""
        while self._ended is None:
            session = self._session
            if session is not None and not session.lost.done():
                return session
            if session is not None:
                self._leave(session)
            try:
                await asyncio.wait_for(self._live.wait(), timeout)
            except asyncio.TimeoutError:
                raise self._down() from None
        raise ConsoleError(self._ended.problem)

    def _leave(self, session: Session) -> None:
        """Forget a lost session; whoever notices first does it."""
        if self._session is session:
            self._session = None
            self._live.clear()

    def _down(self) -> ConsoleError:
        why = self._state.why.happened if isinstance(self._state, Reconnecting) else ""
        return connect_error(
            f"There is no link to {self._host.name}",
            why or "It is not connected.",
            "Nothing was sent. Try again when the link is back.",
        )

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: OnProgress | None = None,
    ) -> Message:
        """The reply to ``message`` (its id is replaced), within ``timeout`` seconds.

        Waits for a link that is being mended.  A request lost on the way is sent again when that
        is harmless.  ``on_progress`` hears what comes before the reply of a preflight; cancelled,
        it is ended on the host.  Raises ConsoleError: the agent's refusal, a lost link, no answer
        in time.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = None if deadline is None else max(deadline - loop.time(), 0.001)
            session = await self._up(left)
            try:
                return await session.ask(message, left, on_progress)
            except ConsoleError:
                if not (session.lost.done() and isinstance(message, _REPEATABLE)):
                    raise

    async def watch(
        self, *, runs: bool = True, host_interval: float = 1.0
    ) -> tuple[RunSummary, ...]:
        """Every run now; changes and telemetry follow through ``on_push``, over reconnects too.

        After a reconnect, runs that changed meanwhile or have not ended are pushed.
        ``host_interval`` is in seconds, 0 for no telemetry.  Raises ConsoleError.
        """
        self._watched = (runs, host_interval)
        session = await self._up(60)
        return await self._start_watch(session, runs, host_interval)

    async def _start_watch(
        self, session: Session, runs: bool, interval: float
    ) -> tuple[RunSummary, ...]:
        self._told = {}  # what is pushed between two pages is newer than a page
        # both at once: on a slow link each waiting for the other would be seen
        found, _ = await asyncio.gather(
            all_runs(lambda message: session.ask(message, 60), watch=runs),
            session.ask(WatchHost(0, max(interval, 0.0)), 60),
        )
        self._told = {**{summary.run: summary for summary in found}, **self._told}
        return tuple(sorted(self._told.values(), key=lambda summary: summary.number))

    async def _renew_watch(self, session: Session) -> None:
        if self._watched is None:
            return
        runs, interval = self._watched
        before = self._told
        for summary in await self._start_watch(session, runs, interval):
            # a long history that stands still need not pass through a screen again
            if summary == before.get(summary.run) and summary.state not in ("queued", "running"):
                continue
            try:
                self._push(RunChanged(summary))
            except Exception:
                _log.exception("a listener failed on RunChanged")

    # ------------------------------------------------------------------ streams

    async def stream(self, run: str, stream: StreamName, offset: int = 0) -> AsyncIterator[Piece]:
        """A run's file from byte ``offset`` on, until the run has ended and all was read.

        A lost link or a slow reader leaves no gap and repeats nothing.  Raises ConsoleError when
        the agent refuses or the link is over for good.
        """
        while True:
            session = await self._up(None)
            feed = Feed()
            try:
                number = await session.subscribe(Subscribe(0, run, stream, offset), feed)
            except ConsoleError:
                if not session.lost.done():
                    raise
                continue
            try:
                async for chunk in feed.chunks():
                    piece = _piece(chunk, offset)
                    offset = piece.offset + len(piece.data)
                    yield piece
                    if piece.ended:
                        return
            finally:
                session.unsubscribe(number)


def _piece(chunk: Chunk, offset: int) -> Piece:
    """What a chunk adds behind ``offset``; bytes that are already there are cut off."""
    try:
        data = base64.b64decode(chunk.data, validate=True)
    except (binascii.Error, ValueError):
        raise connect_error(
            "The stream cannot be read",
            f"The agent's bytes from {chunk.offset} on are not base64.",
            "Open it again; if that repeats, upgrade the agent.",
        ) from None
    if not 0 <= chunk.offset <= offset:
        raise connect_error(
            "The stream has a gap",
            f"Byte {offset} was next, the agent sent {chunk.offset}.",
            "Open it again; if that repeats, upgrade the agent.",
        )
    return Piece(offset, data[offset - chunk.offset :], chunk.caught_up, chunk.ended)


def backoff(attempt: int, chance: float) -> float:
    """Seconds before attempt 1, 2, …: doubling, capped, and spread by ``chance`` in [0, 1)."""
    full = min(FIRST_DELAY * 2.0 ** min(attempt - 1, 16), LAST_DELAY)
    return full * (0.7 + 0.3 * chance) if attempt > 1 else FIRST_DELAY
