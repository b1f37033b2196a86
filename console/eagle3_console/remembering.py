"""A link that keeps what passes through it, and answers from that when the host is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace

from eagle3_agent.protocol import Message, decode_event
from eagle3_agent.protocol.events import Load, Progress, Throughput, Wrote
from eagle3_agent.protocol.messages import (
    Detail,
    GetRun,
    Probing,
    RunChanged,
    StreamName,
    Telemetry,
    Welcome,
)
from eagle3_agent.protocol.values import RunSummary

from .errors import ConsoleError
from .historycache import HistoryCache, mask
from .hosts import connect_error
from .linkstate import Kept, LinkPort, LinkState, Offline, Piece

#: Seconds between two writes of the list while it changes.
_EVERY = 60.0
#: Samples of a run's telemetry that are kept, spread over the run.
GPU_SAMPLES = 600
#: Events of each kind that comes often, the newest; of the others all, up to ``_EVENTS``.
_OFTEN = {Wrote: 60, Progress: 200, Load: 4, Throughput: 20}
_EVENTS = 5000
#: Bytes of a log: its end, and what stands around the cause.
LOG_END = 256 << 10
LOG_CAUSE = 64 << 10
_CAUSE_LINES = (100, 200)


class Remembering:
    """``LinkPort`` over another one.  ``kept`` is what can be read while that one is offline."""

    def __init__(
        self, link: LinkPort, cache: HistoryCache, now: Callable[[], float] = time.time
    ) -> None:
        self._link, self._cache, self._now = link, cache, now
        self.kept: Kept | None = None
        self.on_push: Callable[[RunChanged | Telemetry], None] | None = None
        self._runs: dict[str, RunSummary] = {}
        self._causes: dict[str, int] = {}
        self._written = 0.0
        self._dirty = False
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ as the link itself

    @property
    def state(self) -> LinkState:
        return self._link.state

    @property
    def agent_outdated(self) -> bool:
        return self._link.agent_outdated

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._link.warnings

    @warnings.setter
    def warnings(self, words: tuple[str, ...]) -> None:
        self._link.warnings = words

    @property
    def on_state(self) -> Callable[[LinkState], None] | None:
        return self._link.on_state

    @on_state.setter
    def on_state(self, listener: Callable[[LinkState], None] | None) -> None:
        self._link.on_state = listener

    async def connect(self) -> Welcome:
        """Raises ConsoleError; ``kept`` then holds the history, if there is one."""
        self._link.on_push = self._push
        try:
            welcome = await self._link.connect()
        except ConsoleError:
            self.kept = await asyncio.to_thread(self._cache.kept)
            raise
        self.kept = None
        return welcome

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: Callable[[Probing], None] | None = None,
    ) -> Message:
        if self._offline and isinstance(message, GetRun):
            found = await asyncio.to_thread(self._cache.run, message.run)
            if found is not None:
                detail = found.detail
                if detail.cause is not None:  # its line is one of the whole log
                    line = await asyncio.to_thread(self._cache.cause_line, message.run)
                    detail = replace(detail, cause=replace(detail.cause, line=line))
                return Detail(0, detail)
            raise connect_error(
                f"Run {message.run} was not opened here while there was a link",
                "Of such a run only its line of the history is kept.",
                "Look again when the host can be reached.",
            )
        reply = await self._link.ask(message, timeout, on_progress)
        if isinstance(reply, Detail):
            detail = reply.detail
            if detail.cause is not None and detail.cause.line is not None:
                self._causes[detail.summary.run] = detail.cause.line
            self._spawn(lambda: self._cache.keep_run(detail, self._now()))
        return reply

    async def watch(
        self, *, runs: bool = True, host_interval: float = 1.0
    ) -> tuple[RunSummary, ...]:
        self._link.on_push = self._push
        found = await self._link.watch(runs=runs, host_interval=host_interval)
        self._runs = {run.run: run for run in found}
        self._changed()
        return found

    async def stream(self, run: str, stream: StreamName, offset: int = 0) -> AsyncIterator[Piece]:
        if self._offline:
            data = await asyncio.to_thread(self._cache.stream, run, stream)
            yield Piece(offset, data[offset:], caught_up=True, ended=True)
            return
        seen = _Seen(stream, self._causes.get(run))
        pieces = self._link.stream(run, stream, offset)
        try:
            async for piece in pieces:
                seen.take(piece)
                yield piece
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
            if seen.worth_keeping:
                self._spawn(lambda: self._keep_stream(run, stream, seen))

    async def close(self) -> None:
        """Write what is not written yet, then close."""
        if self._dirty:
            self._write_runs()
        await self._link.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------ keeping

    @property
    def _offline(self) -> bool:
        return isinstance(self._link.state, Offline)

    def _push(self, news: RunChanged | Telemetry) -> None:
        if isinstance(news, RunChanged):
            self._runs[news.summary.run] = news.summary
            self._changed()
        if self.on_push is not None:
            self.on_push(news)

    def _changed(self) -> None:
        self._dirty = True
        if self._now() - self._written >= _EVERY:
            self._write_runs()

    def _write_runs(self) -> None:
        self._written, self._dirty = self._now(), False
        runs = tuple(self._runs.values())
        self._spawn(lambda: self._cache.keep_runs(runs, self._written))

    def _keep_stream(self, run: str, stream: StreamName, seen: _Seen) -> None:
        text, cause = seen.log() if stream == "output" else (seen.text(), None)
        if text:
            self._cache.keep_stream(run, stream, text, self._now(), cause)

    def _spawn(self, work: Callable[[], None]) -> None:
        task = asyncio.create_task(self._write(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, work: Callable[[], None]) -> None:
        async with self._writing:
            # whatever a host sent that cannot be written: the screen does not suffer for it
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                await asyncio.to_thread(work)


class _Seen:
    """What is kept of one reading of a stream, bounded whatever comes."""

    def __init__(self, stream: StreamName, cause: int | None) -> None:
        self._stream, self._cause = stream, cause
        self._end = bytearray()
        self._around = bytearray()
        self._line = 0
        self._whole = False
        self._begun = self._late = False

    @property
    def worth_keeping(self) -> bool:
        """Not so the beginning of a file that was read no further, nor events without theirs."""
        if self._stream == "events":
            return bool(self._end) and not self._late
        return bool(self._end) and (self._whole or self._stream == "output")

    def take(self, piece: Piece) -> None:
        if not self._begun and piece.offset > 0:
            self._late, self._cause = True, None  # the number of its lines is not known
        self._begun = True
        if self._stream == "output" and self._cause is not None:
            self._look(piece.data, self._cause)
        self._end += piece.data
        most = LOG_END if self._stream == "output" else 16 << 20
        if len(self._end) > 2 * most:
            del self._end[:-most]
        self._whole = self._whole or piece.caught_up

    def _look(self, data: bytes, cause: int) -> None:
        first, last = cause - _CAUSE_LINES[0], cause + _CAUSE_LINES[1]
        if self._line <= last and self._line + data.count(b"\n") >= first:
            for number, line in enumerate(data.splitlines(keepends=True), self._line):
                if first <= number <= last and len(self._around) < LOG_CAUSE:
                    self._around += line[: LOG_CAUSE - len(self._around)]
        self._line += data.count(b"\n")

    def text(self) -> str:
        lines = bytes(self._end).split(b"\n")
        return "\n".join(_events(lines) if self._stream == "events" else _samples(lines)) + "\n"

    def log(self) -> tuple[str, int | None]:
        """What is kept of a log, and the line of it where the cause begins, from 0."""
        end = bytes(self._end[-LOG_END:]).decode("utf-8", "replace")
        around = bytes(self._around).decode("utf-8", "replace")
        if self._cause is None or not around:
            return end, None
        into = min(self._cause, _CAUSE_LINES[0])
        if around in end:
            return end, end[: end.index(around)].count("\n") + into
        return f"{around}\n(lines between these and the end are not kept here)\n{end}", into


def _events(lines: list[bytes]) -> list[str]:
    """Newest of what comes often, all of the rest; in their order, masked."""
    kept: list[str] = []
    left = dict(_OFTEN)
    for line in reversed(lines):
        event = decode_event(line) if line else None
        if event is None or len(kept) >= _EVENTS:
            continue
        if type(event) in left:
            left[type(event)] -= 1
            if left[type(event)] < 0:
                continue
        kept.append(json.dumps(mask(json.loads(line))))
    return kept[::-1]


def _samples(lines: list[bytes]) -> list[str]:
    """Whole lines, spread evenly, the newest among them."""
    whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    step = max(1, -(-len(whole) // GPU_SAMPLES))
    kept = whole[::-1][::step][::-1]
    told = []
    for line in kept:
        with contextlib.suppress(ValueError, RecursionError):
            told.append(json.dumps(mask(json.loads(line))))
    return told
