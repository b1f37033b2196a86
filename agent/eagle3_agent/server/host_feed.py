"""Telemetry from a child process, which may hang in the driver and is then killed and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

from eagle3_agent import telemetry
from eagle3_agent.protocol import ProtocolError, from_json
from eagle3_agent.protocol.values import HostSample

from . import children

#: Seconds without a line after which the child is taken to hang; its first line may take longer,
#: since the driver initialises every GPU when nobody else has it open.
SILENCE = 10.0
FIRST = 30.0

#: Seconds that the child is kept for the next single question.
_LINGER = 15.0

#: Seconds between two attempts when telemetry keeps failing: doubled up to the second.
_RETRY = (1.0, 60.0)

_LINE_MAX = 1 << 20


class Feed:
    """One ``sample`` child while anybody wants samples; each sample goes to ``publish``."""

    def __init__(
        self,
        wanted: Callable[[], float | None],
        publish: Callable[[HostSample], None],
        silence: float = SILENCE,
    ) -> None:
        self._watched = wanted
        self._publish = publish
        self._silence = silence
        self._host = telemetry.Sampler()
        self._linger_until = 0.0
        self._change = asyncio.Event()
        self._news = asyncio.Condition()
        self.latest: HostSample | None = None
        self.silent = False
        """NVML gave no answer the last time: nobody knows which GPUs there are."""

    def poke(self) -> None:
        """Somebody began or ceased to watch."""
        self._change.set()

    async def once(self) -> HostSample:
        """A sample taken after this call, or one that says why there is none."""
        asked = time.time()
        self._linger_until = time.monotonic() + _LINGER + FIRST
        self.poke()
        async with self._news:
            await self._news.wait_for(lambda: self.latest is not None and self.latest.t >= asked)
        self._linger_until = time.monotonic() + _LINGER
        assert self.latest is not None
        return self.latest

    def _interval(self) -> float | None:
        watched = self._watched()
        if time.monotonic() < self._linger_until:
            return min(watched or 1.0, 1.0)
        return watched

    async def run(self) -> None:
        """Serve until cancelled."""
        pause = _RETRY[0]
        while True:
            self._change.clear()
            interval = self._interval()
            if interval is None:
                await self._change.wait()
                continue
            why = await self._follow(interval)
            if why:
                await self._tell(self._host.host(problem=why), silent=True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY[1])
            else:
                pause = _RETRY[0]

    async def _follow(self, interval: float) -> str:
        """Publish a child's lines until nobody wants them at this interval; else why it ended."""
        try:
            child = await asyncio.create_subprocess_exec(
                *telemetry.argv(interval),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                limit=_LINE_MAX,
                start_new_session=True,
            )
        except OSError as error:
            return f"telemetry cannot be started: {error}"
        try:
            return await self._read(child, interval)
        finally:
            if child.returncode is None:
                children.end_tree(child.pid)
                with contextlib.suppress(asyncio.TimeoutError):
                    # one that waits in the driver dies when the driver lets it go
                    await asyncio.wait_for(child.wait(), 1.0)

    async def _read(self, child: Process, interval: float) -> str:
        assert child.stdout is not None
        limit = max(self._silence, FIRST) if self._silence == SILENCE else self._silence
        while True:
            line = await self._line(child.stdout, interval, limit)
            if isinstance(line, str):
                return line
            if line is None:
                return ""
            limit = max(self._silence, 5 * interval)
            try:
                sample = from_json(HostSample, json.loads(line))
            except (ValueError, RecursionError, ProtocolError) as error:
                return f"telemetry sent a line that cannot be read: {error}"
            await self._tell(sample, silent=False)

    async def _line(
        self, stdout: asyncio.StreamReader, interval: float, limit: float
    ) -> bytes | str | None:
        """The next line; None when the interval is no longer wanted; words when none comes."""
        reading = asyncio.create_task(stdout.readline())
        until = time.monotonic() + limit
        try:
            while not reading.done():
                if self._interval() != interval:
                    return None
                if time.monotonic() > until:
                    return (
                        f"NVML did not answer within {limit:.0f} s (a call hangs in the NVIDIA "
                        "driver): look for Xid in the kernel log; a reboot may be needed"
                    )
                await asyncio.wait([reading], timeout=0.25)
        finally:
            if not reading.done():
                reading.cancel()
        try:
            line = reading.result()
        except ValueError:
            return "telemetry sent a line without end"
        return line or "telemetry ended by itself; the agent's log on the host may say why"

    async def _tell(self, sample: HostSample, silent: bool) -> None:
        self.silent = silent
        async with self._news:
            self.latest = sample
            self._news.notify_all()
        self._publish(sample)
