"""`log`: 20,000 lines into the log's view, and how long the screen stands still meanwhile.

Ours: LineBuffer and LogView, fed and redrawn as the log screen does it.  Peer:
textual's RichLog, fed the same lines from the same pieces.  Both run in a
headless app of the same size and are timed until the last line is drawn.
Standing still: the longest time that the event loop ran nothing else, which
is how long a key press can be left waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from textual.app import App, ComposeResult
from textual.scroll_view import ScrollView
from textual.widgets import RichLog

from eagle3_console.logbuffer import LineBuffer
from eagle3_console.themes import THEMES
from eagle3_console.widgets.logview import LogView

from . import samples
from .measure import Benchmark, Comparison, Result, Say, take_turns

LINES = 20_000
PIECE = 64 * 1024
"""Bytes a piece: what one read of the link's pipe brings."""
FLUSH = 0.05
"""Seconds between two redraws, as in the log screen."""
TICK = 0.001

Feed = Callable[[bytes], None]


class _Headless(App[None]):
    def __init__(self, view: ScrollView) -> None:
        super().__init__()
        self.view = view
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    def compose(self) -> ComposeResult:
        yield self.view


async def run(rounds: int, say: Say) -> list[Result]:
    pieces = cut(b"".join(line + b"\n" for line in samples.log_lines(LINES)), PIECE)
    stalls: dict[str, list[float]] = {"ours": [], "peer": []}

    async def ours() -> float:
        seconds, stall = await _ours(pieces)
        stalls["ours"].append(stall * 1e3)
        return LINES / seconds

    async def peer() -> float:
        seconds, stall = await _peer(pieces)
        stalls["peer"].append(stall * 1e3)
        return LINES / seconds

    values = await take_turns({"ours": ours, "peer": peer}, rounds, say)
    return [
        Comparison(
            "log.lines",
            "20,000 lines into LineBuffer and LogView, until the last one is drawn",
            "the same lines into textual's RichLog",
            "lines/s",
            "higher",
            values["ours"],
            values["peer"],
        ),
        Comparison(
            "log.stall",
            "longest time that the event loop stood still meanwhile",
            "the same with RichLog",
            "ms",
            "lower",
            tuple(stalls["ours"][-rounds:]),
            tuple(stalls["peer"][-rounds:]),
        ),
    ]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


async def _ours(pieces: list[bytes]) -> tuple[float, float]:
    buffer = LineBuffer()
    view = LogView(buffer)
    flushing: list[object] = []

    def flush() -> None:
        flushing.clear()
        view.update_lines()

    def feed(piece: bytes) -> None:
        buffer.add(piece)
        if not flushing:
            flushing.append(view.set_timer(FLUSH, flush))

    seconds = await _timed(view, feed, pieces, flush)
    if len(buffer) != LINES:
        raise RuntimeError(f"{len(buffer)} of {LINES} lines are in the view")
    return seconds


async def _peer(pieces: list[bytes]) -> tuple[float, float]:
    log = RichLog()
    rest = b""

    def feed(piece: bytes) -> None:
        nonlocal rest
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            log.write(line.decode("utf-8", "replace"))

    seconds = await _timed(log, feed, pieces, lambda: None)
    if len(log.lines) != LINES:
        raise RuntimeError(f"{len(log.lines)} of {LINES} lines are in the view")
    return seconds


async def _timed(
    view: ScrollView, feed: Feed, pieces: list[bytes], finish: Callable[[], None]
) -> tuple[float, float]:
    """Seconds until all is drawn, and the longest stall in seconds."""
    app = _Headless(view)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        monitor = Monitor()
        watching = asyncio.create_task(monitor.watch())
        await asyncio.sleep(5 * TICK)
        began = time.perf_counter()
        for piece in pieces:
            feed(piece)
            await asyncio.sleep(0)
        finish()
        await _drawn(view)
        seconds = time.perf_counter() - began
        await asyncio.sleep(2 * TICK)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        if view.scroll_offset.y != view.max_scroll_y:
            raise RuntimeError("the view did not follow the end")
    return seconds, monitor.worst


async def _drawn(view: ScrollView) -> None:
    """Wait until the view has been laid out and drawn after what was done so far."""
    done = asyncio.Event()
    view.call_after_refresh(done.set)
    await done.wait()


class Monitor:
    """Sleeps in short steps in the same loop; what it oversleeps is the time nobody got a turn."""

    def __init__(self) -> None:
        self.worst = 0.0
        """Seconds."""

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            self.worst = max(self.worst, time.perf_counter() - before - TICK)


BENCHMARK = Benchmark(
    name="log",
    measures="lines a second into the log's view, and the longest stall of the screen",
    peer="textual's RichLog",
    why="a host that floods its log must not freeze the keys",
    rounds=7,
    run=run,
)
