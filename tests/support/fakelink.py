"""A link without a host: tests push what a host would send, and see what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from eagle3_agent.protocol import encode
from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.messages import (
    Detail,
    GetRun,
    Message,
    Probing,
    RunChanged,
    StreamName,
    Telemetry,
    Welcome,
)
from eagle3_agent.protocol.values import HostSample, Problem, RunDetail, RunSummary
from eagle3_console.errors import ConsoleError, error
from eagle3_console.linkstate import Connecting, Kept, LinkState, Live, Offline, Piece

Answer = Callable[[Message], "Message | ConsoleError"]


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class FakeLink:
    """The interface of ``LinkPort``; files grow by ``write``, pushes come from ``push``."""

    def __init__(
        self, *, runs: tuple[RunSummary, ...] = (), now: float = 0.0, latency: float = 0.024
    ) -> None:
        self.on_state: Callable[[LinkState], None] | None = None
        self.on_push: Callable[[RunChanged | Telemetry], None] | None = None
        self.runs = runs
        self.warnings: tuple[str, ...] = ()
        self.kept: Kept | None = None
        self.agent_outdated = False
        self.welcome = Welcome(1, 1, "dev", 4100, "gpu-01", "3.12.3", now, now)
        self._state: LinkState = Connecting("opening the connection")
        self._latency = latency
        self._files: dict[tuple[str, str], _File] = {}
        self.asked: list[Message] = []
        self.answers: dict[type, Answer] = {}
        self.details: dict[str, RunDetail] = {}
        self.progress: list[Probing] = []
        """Told before the reply of whoever listens."""
        self.held: dict[type, asyncio.Event] = {}
        """Replies that wait until a test lets them go."""
        self.samples: list[HostSample] = []
        """Sent as soon as the host is watched."""
        self.refuse_connect: Problem | None = None
        self.closed = False
        self.gate = asyncio.Event()
        """Cleared by a test that wants the connect to take long."""
        self.gate.set()

    # ------------------------------------------------------------------ the interface

    @property
    def state(self) -> LinkState:
        return self._state

    async def connect(self) -> Welcome:
        await self.gate.wait()
        if self.refuse_connect is not None:
            self.move(Offline(self.welcome.now, self.refuse_connect))
            raise ConsoleError(self.refuse_connect)
        self.move(Live(self._latency, self.welcome))
        return self.welcome

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: Callable[[Probing], None] | None = None,
    ) -> Message:
        self.asked.append(message)
        await asyncio.sleep(0)
        if on_progress is not None:
            for probing in self.progress:
                on_progress(probing)
        if type(message) in self.held:
            await self.held[type(message)].wait()
        if isinstance(message, GetRun) and message.run in self.details:
            return Detail(0, self.details[message.run])
        answer = self.answers.get(type(message))
        if answer is None:
            raise error("Not scripted", f"{type(message).__name__} has no answer here", "")
        reply = answer(message)
        if isinstance(reply, ConsoleError):
            raise reply
        return reply

    async def stream(self, run: str, stream: StreamName, offset: int = 0) -> AsyncIterator[Piece]:
        file = self._file(run, stream)
        while True:
            file.changed.clear()
            data = bytes(file.data[offset : offset + 256 * 1024])
            end = offset + len(data)
            caught_up = end >= len(file.data)
            yield Piece(offset, data, caught_up, file.ended and caught_up)
            offset = end
            if not caught_up:
                continue
            if file.ended:
                return
            await file.changed.wait()

    async def watch(
        self, *, runs: bool = True, host_interval: float = 1.0
    ) -> tuple[RunSummary, ...]:
        for sample in self.samples:
            self.push(Telemetry(sample))
        return self.runs

    async def close(self) -> None:
        self.closed = True

    # ------------------------------------------------------------------ the script

    def answer(self, kind: type, reply: Answer) -> None:
        self.answers[kind] = reply

    def asked_for(self, kind: type) -> list[Message]:
        return [m for m in self.asked if isinstance(m, kind)]

    def move(self, state: LinkState) -> None:
        """The link changes; a link that came back says its files again from where they stood."""
        back = isinstance(state, Live) and not isinstance(self._state, (Live, Connecting))
        self._state = state
        if self.on_state is not None:
            self.on_state(state)
        if back:
            for file in self._files.values():
                file.changed.set()

    def push(self, news: RunChanged | Telemetry) -> None:
        if isinstance(news, RunChanged):
            others = tuple(r for r in self.runs if r.run != news.summary.run)
            self.runs = (*others, news.summary)
        if self.on_push is not None:
            self.on_push(news)

    def write(self, run: str, stream: StreamName, data: bytes, *, ended: bool = False) -> None:
        file = self._file(run, stream)
        file.data += data
        file.ended = file.ended or ended
        file.changed.set()

    def happen(self, run: str, *events: Event, ended: bool = False) -> None:
        """Append events as the host's journal does."""
        self.write(run, "events", b"".join(map(encode, events)), ended=ended)

    def _file(self, run: str, stream: str) -> _File:
        return self._files.setdefault((run, stream), _File())
