"""What all clients of one daemon share: the index of runs, the clients, the wish to leave."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from eagle3_agent.protocol.values import HostSample, RunSummary
from eagle3_agent.summaries import Index, short

from .host_feed import Feed

#: Seconds between two looks at the folders of runs that go on.
TICK = 0.25


class Watcher(Protocol):
    """A client, as the agent sees it: told what changes, and asked what it watches."""

    host_interval: float | None

    def run_changed(self, summary: RunSummary) -> None: ...

    def sampled(self, sample: HostSample) -> None: ...

    def leave(self) -> None: ...


class Agent:
    """One daemon's state; all of it can be read again from the run folders."""

    def __init__(self, idle: float, silence: float) -> None:
        self.index = Index()
        self.feed = Feed(self._host_interval, self._sampled, silence)
        self.verifying = asyncio.Lock()
        self.loaded = asyncio.Event()
        """Set once every folder has been read."""
        self.clients: set[Watcher] = set()
        self.started = time.time()
        self.stopping = asyncio.Event()
        self._idle = idle
        self._used = time.monotonic()

    async def load(self) -> None:
        """Read every folder, a few at a time, so that greetings are answered meanwhile."""
        for count, _ in enumerate(self.index.refreshing()):
            if count % 20 == 0:
                await asyncio.sleep(0)
        self.loaded.set()

    def refresh(self, run: str = "") -> None:
        """Read what is new (of one run, or of all) and tell those who watch."""
        if run:
            changed = self.index.update(run)
            found = [changed] if changed else []
        else:
            found = self.index.refresh()
        for summary in found:
            for client in self.clients:
                client.run_changed(short(summary))

    def _host_interval(self) -> float | None:
        """The shortest interval that a client watches the host at; None when none does."""
        asked = [c.host_interval for c in self.clients if c.host_interval is not None]
        return min(asked, default=None)

    def _sampled(self, sample: HostSample) -> None:
        for client in self.clients:
            client.sampled(sample)

    def busy(self, besides: Watcher | None = None) -> str:
        """Why the agent should stay, in words; empty when nobody needs it."""
        others = len(self.clients - {besides}) if besides else len(self.clients)
        if others:
            return f"{others} clients are connected"
        for entry in self.index.in_state("running", "queued"):
            return f"run {entry.summary.run} is {entry.summary.state}"
        return ""

    def stop(self) -> None:
        self.stopping.set()

    async def tick(self, look_after: Callable[[], None]) -> None:
        """Read what is new and ``look_after`` the runs, until it is time to leave."""
        await self.load()
        while not self.stopping.is_set():
            self.refresh()
            look_after()
            if self.busy():
                self._used = time.monotonic()
            elif time.monotonic() - self._used > self._idle:
                self.log("nobody and nothing needed the agent for a while: it leaves")
                self.stop()
            await asyncio.sleep(TICK)

    def log(self, text: str) -> None:
        """One line in the agent's log; none where its disk is full, which must not end the work."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):
            print(f"{stamp} {text!s:.2000}", file=sys.stderr, flush=True)

    def log_fault(self, text: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.log(f"{text}: {trace[-1900:]}")
