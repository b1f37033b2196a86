"""A run's events as progress on the terminal, until the run ends."""

from __future__ import annotations

import time

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.events import Event, Load, Note, Progress, Skipped, Stage
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import RunSummary
from eagle3_console import render
from eagle3_console.linkstate import LinkPort

from .linking import run_detail
from .terminal import Terminal

#: Seconds between two progress lines where a line cannot be written over, and where it can.
_LINE_EVERY = 5.0
_REWRITE_EVERY = 0.2


class Display:
    """Folds events and decides what of them is shown."""

    def __init__(self, terminal: Terminal) -> None:
        self.standing = Standing()
        self._terminal = terminal
        self._shown_at = 0.0
        self._shown = ""
        self._skips = 0

    def take(self, event: Event) -> None:
        self.standing = fold(self.standing, event)
        if isinstance(event, Stage) and event.name != "done":
            self._stage(event)
        elif isinstance(event, Note) and event.level == "warning":
            self._terminal.milestone(f"  ! {event.text}", "amber")
        elif isinstance(event, Skipped):
            self._skip(event)
        elif isinstance(event, (Load, Progress)) or self._terminal.rewrites:
            self._progress()

    def _stage(self, event: Stage) -> None:
        if event.status == "start":
            self._shown_at = 0.0  # the first figures of a stage are shown at once
            if self._terminal.rewrites:  # between two lines that stay it would say nothing new
                self._progress()
            return
        line, colour = render.stage_line(self.standing, event)
        self._terminal.milestone(line, colour)

    def _skip(self, event: Skipped) -> None:
        self._skips += 1
        if self._skips <= 5:
            self._terminal.milestone(f"  ! sample {event.index} skipped: {event.reason}", "amber")
        elif self._skips == 6:
            self._terminal.milestone("  ! more samples are skipped; `events` lists them", "amber")

    def _progress(self) -> None:
        line = render.progress_line(self.standing)
        every = _REWRITE_EVERY if self._terminal.rewrites else _LINE_EVERY
        due = time.monotonic() - self._shown_at >= every
        if line and due and line != self._shown:
            self._terminal.progress(line)
            self._shown_at, self._shown = time.monotonic(), line


async def follow_run(link: LinkPort, run: str, terminal: Terminal) -> RunSummary:
    """Show a run from its first event to its end; its final summary.

    Raises ConsoleError when the link is lost for good.
    """
    display = Display(terminal)
    rest = b""
    async for piece in link.stream(run, "events"):
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            event = decode_event(line)
            if event is not None:
                display.take(event)
    terminal.settle()
    return (await run_detail(link, run)).summary
