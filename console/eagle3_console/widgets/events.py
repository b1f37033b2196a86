"""The run's newest events as sentences, one a row, the newest at the bottom."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from eagle3_agent.protocol.events import (
    Aborting,
    Diagnosed,
    Ended,
    Event,
    Failure,
    Load,
    Note,
    Patched,
    Plan,
    Progress,
    Skipped,
    Spawned,
    Stage,
    Throughput,
    Wrote,
)
from eagle3_console import bounds, formats
from eagle3_console.hosttext import clean
from eagle3_console.store import State

from . import ink
from .panel import Panel
from .run import error_headline


class EventsPanel(Panel):
    """As many rows as the screen has left."""

    PURE = True
    DEFAULT_CSS = """
    EventsPanel { height: 1fr; min-height: 1; }
    """

    def lines(self, state: State, width: int) -> list[Content]:
        return event_lines(state.tail, self.content_size.height, width)

    def get_content_height(self, *_: object) -> int:
        return max(1, self.content_size.height)


def event_lines(events: tuple[Event, ...], height: int, width: int) -> list[Content]:
    """The newest events: sample files take half of the room at most when others want it."""
    return [ink.cut(line, width) for line in rows(newest(events, height))[-max(0, height) :]]


def rows(events: Sequence[Event]) -> list[Content]:
    """One row an event; patches that went as planned, in one row together."""
    made: list[Content] = []
    patches: list[Patched] = []
    for event in events:
        if isinstance(event, Patched) and event.finding.status != "cannot-tell":
            patches.append(event)
            continue
        made += _patches(patches)
        patches = []
        made.append(event_line(event))
    return made + _patches(patches)


def _patches(events: Sequence[Patched]) -> list[Content]:
    if len(events) < 2:
        return [event_line(event) for event in events]
    applied = sum(event.applied for event in events)
    rest = len(events) - applied
    words = f"{applied} patches applied" + (f", {rest} not needed" if rest else "")
    return [ink.row((f"{formats.clock(events[-1].t):>8}  ", ink.DIM), "  ", (words, ink.DIM))]


def newest(events: Sequence[Event], height: int) -> list[Event]:
    """Events in their order that make at least ``height`` rows if there are so many."""
    others = [event for event in events if not isinstance(event, Wrote)]
    room = max(height // 2, height - len(rows(others[-2 * height :])))
    kept: list[Event] = []
    wanted = height
    for event in reversed(events):
        if wanted <= 0:
            break
        if isinstance(event, Wrote):
            if room <= 0:
                continue
            room -= 1
        wanted -= 0 if isinstance(event, Patched) else 1
        kept.append(event)
    return kept[::-1]


def event_line(event: Event) -> Content:
    symbol, colour, words = describe(event)
    mark = (f"{symbol} ", f"bold {colour}" if colour else "")
    # what is well is marked by its symbol alone; what needs a look stands out as a whole
    loud = colour if colour in (ink.BAD, ink.LOOK, ink.DIM) else ""
    return ink.row((f"{formats.clock(event.t):>8}  ", ink.DIM), mark, (words, loud))


def describe(event: Event) -> tuple[str, str, str]:
    """(symbol, colour, sentence) of one event; the colour is empty for plain text."""
    if isinstance(event, Stage):
        return _stage(event)
    if isinstance(event, Wrote):
        shape = ", ".join(map(str, event.shape))
        states = f"  [{shape}] {clean(event.dtype)} ×{event.layers}" if shape else ""
        what = f"wrote {clean(event.file):<14} {formats.count(event.tokens):>6} tokens"
        return " ", "", f"{what}  {formats.size(event.bytes):>9}{states}"
    if isinstance(event, Load):
        return " ", "", f"shard {event.done} of {event.total} loaded"
    if isinstance(event, Plan):
        parts = [f"{formats.count(event.total)} samples"]
        if event.tokens is not None:
            parts.append(f"{formats.count(event.tokens)} tokens")
        if event.bytes is not None:
            parts.append(f"{formats.size(event.bytes)} to write")
        if event.reused:
            parts.append(f"{formats.count(event.reused)} kept from before")
        return " ", "", "plan: " + " · ".join(parts)
    if isinstance(event, Skipped):
        return "!", ink.LOOK, f"sample {event.index} skipped: {clean(event.reason)}"
    if isinstance(event, Note):
        warning = event.level == "warning"
        return ("!" if warning else " "), (ink.LOOK if warning else ""), clean(event.text)
    if isinstance(event, Failure):
        return "✗", ink.BAD, error_headline(event.error, 400)
    if isinstance(event, Diagnosed):
        return "✗", ink.BAD, f"first: {clean(event.cause.sentence)}"
    if isinstance(event, Patched):
        done = "applied" if event.applied else event.finding.status.replace("-", " ")
        return " ", ink.DIM, f"patch {clean(event.finding.patch)}: {done}"
    if isinstance(event, Throughput):
        said = bounds.words(event)
        return " ", ink.DIM, f"{bounds.computed(event)}{f': {said}' if said else ''}"
    return _life(event)


def _stage(event: Stage) -> tuple[str, str, str]:
    detail = f": {clean(event.detail)}" if event.detail else ""
    if event.status == "start":
        return "▶", ink.NOW, f"{event.name} began{detail}"
    if event.status == "failed":
        return "✗", ink.BAD, f"{event.name} failed{detail}"
    return "✓", ink.GOOD, f"{event.name} done{detail}"


def _life(event: Spawned | Aborting | Ended | Progress) -> tuple[str, str, str]:
    if isinstance(event, Spawned):
        return " ", "", f"worker started, pid {event.worker} (supervisor {event.supervisor})"
    if isinstance(event, Aborting):
        pids = " ".join(map(str, event.pids[:8])) + (" …" if len(event.pids) > 8 else "")
        return "!", ink.LOOK, f"abort: {clean(event.signal)} to pid {pids}"
    if isinstance(event, Ended):
        symbol, colour = ink.OUTCOME[event.state]
        text = f": {clean(event.text)}" if event.text else ""
        return symbol, colour, f"run {event.state}{text}"
    return " ", ink.DIM, f"{formats.count(event.done)} of {formats.count(event.total)} samples"
