"""One live conversation with an agent: replies by number, streams, what comes unasked, liveness.

It begins on a channel that already speaks the wire and ends once, with a
reason.  Beginning again is ``link``'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Union, cast

from eagle3_agent.protocol import MAX_LINE, Message, ProtocolError, decode_message, encode
from eagle3_agent.protocol.messages import (
    Cancel,
    Chunk,
    GetCompat,
    Ping,
    Probing,
    Refused,
    RunChanged,
    RunPreflight,
    Subscribe,
    Telemetry,
    Unsubscribe,
    Verify,
    Welcome,
)
from eagle3_agent.protocol.values import Problem

from .errors import ConsoleError, error
from .hosts import Channel, connect_error, printable

PING_EVERY = 2.0
"""Seconds between two pings."""
SILENCE = 7.0
"""Seconds without a byte, with a ping unanswered, after which a link counts as dead."""
FEED_BYTES = 4 * 1024 * 1024
"""What one stream may hold for a reader that is slower than the host."""

Push = Union[RunChanged, Telemetry]
OnProgress = Callable[[Probing], None]

#: Long work that changes nothing: the host need not go on with it once nobody waits.
_CANCELLABLE = (GetCompat, RunPreflight, Verify)

_log = logging.getLogger(__name__)


class Lines:
    """Bytes in, whole lines out; never holds more than one line's worth.

    Raises ProtocolError when a line outgrows ``MAX_LINE``.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        *whole, rest = data.split(b"\n")
        lines = []
        for part in whole:
            lines.append(b"".join((*self._parts, part)))
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise ProtocolError(f"a line longer than {MAX_LINE} bytes")
        return lines


class Feed:
    """What arrived of one stream and was not read yet, bounded in bytes.

    A reader that falls behind loses the subscription, never a byte: what is queued is still
    handed out, and the owner subscribes again from where that ends.
    """

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._size = 0
        self._arrived = asyncio.Event()
        self.broken = False

    def put(self, chunk: Chunk) -> bool:
        """Queue a chunk; False when it did not fit and the subscription is over."""
        if self.broken:
            return False
        if self._chunks and self._size + len(chunk.data) > FEED_BYTES:
            self.close()
            return False
        self._chunks.append(chunk)
        self._size += len(chunk.data)
        self._arrived.set()
        return True

    def close(self) -> None:
        """Nothing more will come."""
        self.broken = True
        self._arrived.set()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Everything queued, then what comes, until closed."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk.data)
                yield chunk
            if self.broken:
                return
            self._arrived.clear()
            await self._arrived.wait()


class Session:
    """One connection to an agent, from the greeting to its loss."""

    def __init__(
        self,
        channel: Channel,
        rest: bytes,
        name: str,
        on_push: Callable[[Push], None],
        on_latency: Callable[[float], None],
    ) -> None:
        self.lost: asyncio.Future[ConsoleError] = asyncio.get_running_loop().create_future()
        """Done once, with the reason."""
        self._channel = channel
        self._rest = rest
        self._name = name
        self._on_push = on_push
        self._on_latency = on_latency
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._progress: dict[int, OnProgress] = {}
        self._feeds: dict[int, Feed] = {}
        self._heard = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    def start(self) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._spawn(self._read())
        self._spawn(self._watch())

    async def close(self) -> None:
        self._end(_closed(self._name))
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()

    # ------------------------------------------------------------------ asking

    async def ask(
        self, message: Message, timeout: float | None, on_progress: OnProgress | None = None
    ) -> Message:
        """Send with a fresh id and wait for its reply.  Raises ConsoleError.

        A preflight that is no longer waited for, and the like of it, is ended on the host.
        """
        number, line = self._numbered(message)
        if on_progress is not None:
            self._progress[number] = on_progress
        answered = False
        try:
            reply = await self._ask(number, line, type(message).__name__, timeout)
            answered = True
            return reply
        except ConsoleError as problem:
            answered = problem.problem.code != "connect"
            raise
        finally:
            self._progress.pop(number, None)
            if not answered and isinstance(message, _CANCELLABLE) and not self.lost.done():
                self._spawn(self._write(encode(Cancel(next(self._ids), number))))

    def _numbered(self, message: Message) -> tuple[int, bytes]:
        number = next(self._ids)
        try:
            return number, encode(dataclasses.replace(cast(Any, message), id=number))
        except ProtocolError as problem:
            raise error(
                "The request is too big to send", str(problem), "Shorten the profile.", "usage"
            ) from None

    async def _ask(self, number: int, line: bytes, name: str, timeout: float | None) -> Message:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        try:
            if self.lost.done():
                raise self.lost.result()
            self._spawn(self._write(line))
            await asyncio.wait({reply}, timeout=timeout)
            if not reply.done():
                raise connect_error(
                    f"{self._name} did not answer in time",
                    f"{name} was sent, and no reply came within {timeout:.0f} s.",
                    "Whether it was done is not known: look at the list of runs.",
                )
            answer = reply.result()
        finally:
            self._pending.pop(number, None)
            if reply.done():
                reply.exception()  # seen, even where whoever asked was cancelled meanwhile
        if isinstance(answer, Refused):
            raise ConsoleError(answer.problem, answer.report)
        return answer

    async def subscribe(self, message: Subscribe, feed: Feed) -> int:
        """Fill ``feed`` from now on; returns the number to unsubscribe with."""
        number, line = self._numbered(message)
        # before the reply: the first chunk may arrive in the same read
        self._feeds[number] = feed
        try:
            await self._ask(number, line, "Subscribe", 60)
        except BaseException:
            # given up on, it may still have been heard
            self.unsubscribe(number)
            raise
        return number

    def unsubscribe(self, number: int) -> None:
        """Stop a stream; nobody waits for the answer."""
        if self._feeds.pop(number, None) is not None and not self.lost.done():
            self._spawn(self._write(encode(Unsubscribe(next(self._ids), number))))

    # ------------------------------------------------------------------ the pipe

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, line: bytes) -> None:
        try:
            async with self._writing:
                await self._channel.write(line)
        except ConsoleError as problem:
            self._end(problem)

    async def _read(self) -> None:
        lines, data = Lines(), self._rest
        try:
            while True:
                for line in lines.feed(data):
                    self._take(line)
                data = await self._channel.read()
                if not data:
                    self._end(self._hung_up())
                    return
                self._heard = asyncio.get_running_loop().time()
                # a host that never stops talking must not keep this loop to itself
                await asyncio.sleep(0)
        except ProtocolError as problem:
            self._end(
                connect_error(
                    f"{self._name} sent something that is not the protocol",
                    printable(str(problem)),
                    "Upgrade the agent: eagle3-console agent upgrade TARGET.",
                )
            )
        except ConsoleError as problem:
            self._end(problem)
        except Exception as fault:
            # whatever a host can send that nobody thought of: the link ends, and says so
            _log.exception("reading failed")
            self._end(
                connect_error(
                    f"Reading from {self._name} failed",
                    f"{type(fault).__name__}: {printable(str(fault))}",
                    "The console connects again by itself.",
                )
            )

    def _hung_up(self) -> ConsoleError:
        said = printable(self._channel.stderr_tail())
        return connect_error(
            f"The agent on {self._name} hung up",
            f"It said: {said}" if said else "The connection ended without a word.",
            "The runs go on without it; the console connects again by itself.",
        )

    def _take(self, line: bytes) -> None:
        message = decode_message(line)
        if isinstance(message, Chunk):
            feed = self._feeds.get(message.sub)
            if feed is not None and not feed.put(message):
                self.unsubscribe(message.sub)
            return
        number = getattr(message, "re", None)
        if isinstance(message, Probing):
            self._tell(self._progress.get(message.re), message)
        elif number is not None:
            reply = self._pending.get(number)
            if reply is not None and not reply.done():
                reply.set_result(message)
        elif isinstance(message, (RunChanged, Telemetry)):
            self._tell(self._on_push, message)

    def _tell(self, listener: Callable[[Any], None] | None, message: Message) -> None:
        try:
            if listener is not None:
                listener(message)
        except Exception:
            _log.exception("a listener failed on %s", type(message).__name__)

    def _end(self, why: ConsoleError) -> None:
        """Tell everybody who waits, once."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(ConsoleError(_unknown(why.problem)))
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    # ------------------------------------------------------------------ liveness

    async def _watch(self) -> None:
        """Ping, and end the session when nothing at all is heard."""
        loop = asyncio.get_running_loop()
        step = PING_EVERY / 4
        pinged = 0.0
        ping: asyncio.Task[None] | None = None
        while not self.lost.done():
            before = loop.time()
            await asyncio.sleep(step)
            now = loop.time()
            if now - before > step + PING_EVERY:
                # this process slept (a suspended laptop, a blocked loop): what the host sent
                # meanwhile was not read yet
                self._heard = now
            if ping is None or ping.done():
                if now - pinged >= PING_EVERY:
                    pinged = now
                    ping = self._spawn(self._ping())
            elif now - self._heard > SILENCE:
                self._end(
                    connect_error(
                        f"{self._name} fell silent",
                        f"No byte came for {now - self._heard:.0f} s.",
                        "The runs go on; the console connects again by itself.",
                    )
                )

    async def _ping(self) -> None:
        began = asyncio.get_running_loop().time()
        with contextlib.suppress(ConsoleError):
            await self.ask(Ping(0), None)
            self._on_latency(asyncio.get_running_loop().time() - began)


async def greet(session: Session, hello: Message, version: int) -> Welcome:
    """Exchange greetings; raises ConsoleError when the two speak different versions."""
    reply = await session.ask(hello, 30)
    if not isinstance(reply, Welcome):
        raise connect_error(
            "The agent did not greet",
            f"It answered {type(reply).__name__}.",
            "Upgrade the agent: eagle3-console agent upgrade TARGET.",
        )
    if reply.version != version:
        newer = "the console" if reply.version > version else "the agent"
        raise connect_error(
            "The agent and this console speak different versions of the protocol",
            f"The agent on {printable(reply.host)} speaks {reply.version}, this console {version}.",
            f"Upgrade {newer}"
            + ("." if newer == "the console" else ": eagle3-console agent upgrade TARGET."),
        )
    return reply


def _closed(name: str) -> ConsoleError:
    return connect_error(f"The link to {name} is closed", "It was closed here.", "Connect again.")


def _unknown(why: Problem) -> Problem:
    return dataclasses.replace(
        why,
        happened=f"{why.happened} A request was under way: whether it was done is not known.",
    )
