"""One connection: lines in, replies and pushes out, and never more in memory than a few of them."""

from __future__ import annotations

import asyncio
import json
import select
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from eagle3_agent.protocol import MAX_LINE, VERSION, Message, ProtocolError, decode_message, encode
from eagle3_agent.protocol.messages import (
    Abort,
    Act,
    AgentStatus,
    Clear,
    GetCompat,
    Hello,
    Ping,
    Refused,
    Resume,
    RunChanged,
    RunPreflight,
    Start,
    StopAgent,
    Telemetry,
    Verify,
)
from eagle3_agent.protocol.values import HostSample, Problem, RunSummary

from .agent import Agent
from .errors import Refusal

T = TypeVar("T")

#: Requests of one client that may be under way; more are left in the socket.
_PENDING_MAX = 64

#: Seconds without a line after which a client that used to ping counts as gone.
SILENCE = 30.0

#: What may be given up half way: nothing on the host was changed by then.
_CANCELLABLE = (GetCompat, RunPreflight, Verify)

#: Understood before a Hello, and from a client of another wire version.
_ALWAYS = (Ping, AgentStatus, StopAgent)


def changes(message: Message) -> bool:
    """Whether a message would change the host: what a read-only client may not send."""
    if isinstance(message, Clear):
        return message.confirm
    return isinstance(message, (Act, Start, Resume, Abort, StopAgent))


class Client:
    """What the agent knows of one connected client."""

    def __init__(
        self,
        agent: Agent,
        answers: Callable[[Client, Message], Awaitable[Message]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """``answers`` makes the reply to a request, or raises Refusal."""
        self._agent = agent
        self._answers = answers
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._room = asyncio.Semaphore(_PENDING_MAX)
        self._pending: set[asyncio.Task[None]] = set()
        self._cancellable: dict[int, asyncio.Task[None]] = {}
        self._given_up: set[int] = set()
        self._heard = asyncio.get_running_loop().time()
        self._pings = False
        self._changed: dict[str, RunSummary] = {}
        self._sample: HostSample | None = None
        self._news = asyncio.Event()
        self._pusher: asyncio.Task[None] | None = None
        self.greeted = False
        self.name = ""
        """As it calls itself."""
        self.read_only = False
        self.watches_runs = False
        self.host_interval: float | None = None
        """Seconds between two Telemetry; None when the client does not watch the host."""
        self._next_sample = 0.0
        self.streams: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the client leaves.  What it asked for is answered before that.

        A client may close its sending side and still read the replies to what it sent.
        """
        try:
            await self._read_all()
            self._drop_pushes()
            while self._pending and not self._gone():
                await asyncio.wait(self._pending, timeout=1.0)
        except (ConnectionError, asyncio.CancelledError):
            pass  # it is gone: whatever it asked for is of no use to it
        finally:
            self._drop_pushes()
            for task in self._pending:
                task.cancel()
            await asyncio.gather(*self._pending, return_exceptions=True)
            self._writer.close()

    def _gone(self) -> bool:
        """Whether nobody can read a reply any more; closing only its sending half is not that."""
        sock = self._writer.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), 0)  # HUP and ERR are told unasked
        return bool(poll.poll(0))

    def leave(self) -> None:
        """Answer what was asked, read no more."""
        self._reader.feed_eof()

    def _drop_pushes(self) -> None:
        self.watches_runs, self.host_interval = False, None
        for task in [*self.streams.values(), self._pusher]:
            if task is not None:
                task.cancel()
        self.streams.clear()

    async def _read_all(self) -> None:
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                what = f"it sent a line longer than {MAX_LINE} bytes, and was cut off"
                await self.send(Refused(0, _unreadable(what)))
                return
            self._heard = asyncio.get_running_loop().time()
            if line.strip():
                await self._room.acquire()
                await self._begin(line)

    async def _begin(self, line: bytes) -> None:
        try:
            message = decode_message(line)
        except ProtocolError as error:
            self._room.release()
            await self.send(Refused(_id_of(line), _unreadable(str(error))))
            return
        if isinstance(message, Hello):
            # at once, not beside the next line: what it forbids must hold for that line
            self.read_only = self.read_only or message.read_only
            self.greeted = message.version == VERSION
            self.name = message.client
        self._pings = self._pings or isinstance(message, Ping)
        task = asyncio.create_task(self._answer(message))
        self._pending.add(task)
        task.add_done_callback(self._answered)
        if isinstance(message, _CANCELLABLE):
            self._cancellable[message.id] = task
            task.add_done_callback(lambda _: self._cancellable.pop(message.id, None))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self._room.release()
        if not task.cancelled() and isinstance(task.exception(), ConnectionError):
            self._writer.transport.abort()

    async def _answer(self, message: Message) -> None:
        number = getattr(message, "id", 0)
        reply: Message
        try:
            if not self.greeted and not isinstance(message, (*_ALWAYS, Hello)):
                raise Refusal("No greeting", "the first line was not a Hello", "Send Hello first.")
            if self.read_only and changes(message):
                raise Refusal(
                    "This connection only reads",
                    f"{type(message).__name__} would change the host",
                    "Connect without --read-only to do that.",
                    code="refused",
                )
            reply = await self._answers(self, message)
        except Refusal as refusal:
            reply = Refused(number, refusal.problem, refusal.report)
        except asyncio.CancelledError:
            if number not in self._given_up:
                raise  # the client has left
            self._given_up.discard(number)
            reply = Refused(number, _given_up(type(message).__name__))
        except (OSError, ProtocolError) as error:
            if isinstance(error, ConnectionError):
                raise
            self._agent.log(f"{type(message).__name__}: {type(error).__name__}: {error}")
            reply = Refused(number, _failed(type(message).__name__, str(error)))
        except Exception as error:  # a fault of ours must not end the other clients
            self._agent.log_fault(f"{type(message).__name__} failed", error)
            reply = Refused(number, _internal(type(message).__name__, error))
        await self.send(reply)

    async def send(self, message: Message) -> None:
        """Write one line, and wait while the client does not read; raises ConnectionError."""
        try:
            line = encode(message)
        except ProtocolError as error:
            line = encode(Refused(getattr(message, "re", 0), _unreadable(str(error))))
        async with self._sending:
            self._writer.write(line)
            await self._writer.drain()

    def cancel(self, number: int) -> bool:
        """Give up a request that is under way; False where there is none that can be."""
        task = self._cancellable.get(number)
        if task is None or not task.cancel():
            return False
        self._given_up.add(number)
        return True

    async def while_heard(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives, unless the client is cut off meanwhile without a word.

        A host is not told when a laptop is closed: one that pinged and no longer does is taken
        for gone.  Raises Refusal.
        """
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=1.0)
                silent = asyncio.get_running_loop().time() - self._heard
                if self._pings and silent > SILENCE and not task.done():
                    raise Refusal(
                        "It was given up half way",
                        f"nothing was heard of the console for {silent:.0f} s",
                        "Ask again.",
                    )
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # ------------------------------------------------------------ streams

    def open_stream(self, sub: int, pump: Coroutine[Any, Any, None]) -> None:
        """Let ``pump`` send its chunks once the reply to the request that asked is out."""
        self.streams[sub] = asyncio.create_task(self._run_stream(sub, pump))

    def close_stream(self, sub: int) -> None:
        task = self.streams.pop(sub, None)
        if task is not None:
            task.cancel()

    async def _run_stream(self, sub: int, pump: Coroutine[Any, Any, None]) -> None:
        try:
            await pump
        except ConnectionError:
            self._writer.transport.abort()
        except OSError as error:
            self._agent.log(f"stream {sub}: {error}")
            problem = Problem("A stream broke off", str(error), "Look at the file on the host.")
            await self.send(Refused(sub, problem))
        finally:
            if self.streams.get(sub) is asyncio.current_task():
                del self.streams[sub]

    # ------------------------------------------------------------ pushes, the newest wins

    def run_changed(self, summary: RunSummary) -> None:
        """Have the newest summary of a run sent when the client has room for it."""
        if self.watches_runs:
            self._changed[summary.run] = summary
            self._push()

    def sampled(self, sample: HostSample) -> None:
        """Have the newest sample sent, if this client's interval is over."""
        if self.host_interval is not None and sample.t >= self._next_sample:
            self._next_sample = sample.t + 0.9 * self.host_interval
            self._sample = sample
            self._push()

    def watch_host(self, interval: float) -> None:
        """Seconds between samples; 0 stops them."""
        self.host_interval = max(0.25, min(interval, 3600.0)) if interval > 0 else None
        self._next_sample = 0.0

    def _push(self) -> None:
        self._news.set()
        if self._pusher is None or self._pusher.done():
            self._pusher = asyncio.create_task(self._push_all())

    async def _push_all(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                sample, self._sample = self._sample, None
                if sample is not None:
                    await self.send(Telemetry(sample))
                while self._changed:
                    run = next(iter(self._changed))
                    await self.send(RunChanged(self._changed.pop(run)))
        except ConnectionError:
            self._writer.transport.abort()


def _id_of(line: bytes) -> int:
    """The number of a request that could not be read, so that its sender can tell; else 0."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    number = body.get("id") if isinstance(body, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _unreadable(what: str) -> Problem:
    return Problem(
        "The agent did not understand a message",
        what,
        "Console and agent may be of different versions: `eagle3-console agent upgrade TARGET`.",
        "usage",
    )


def _given_up(name: str) -> Problem:
    return Problem(f"{name} was given up", "the console asked for that", "", "refused")


def _failed(name: str, what: str) -> Problem:
    return Problem(f"{name} failed on the host", what, "See the agent's log on the host.")


def _internal(name: str, error: Exception) -> Problem:
    return Problem(
        f"The agent failed at {name}",
        f"{type(error).__name__}: {error}",
        "This is a fault of the agent; its log on the host holds the traceback.",
        "internal",
    )
