"""`log`: 20,000 lines into the log's view, and how long the screen stands still meanwhile.

Ours: LineBuffer and LogView, fed and redrawn as the log screen does it.  Peers:
textual's RichLog, which styles each line when it is written, and its Log, which
like ours styles what is in sight and is the stronger peer.  All are fed the same
pieces in a headless app of the same size and timed until the last line is drawn.
Standing still: the longest time that the event loop ran nothing else, which
is how long a key press can be left waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from textual.app import App, ComposeResult
from textual.scroll_view import ScrollView
from textual.widgets import Log, RichLog

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
Timed = tuple[float, float]
"""Seconds until all is drawn, and the longest stall in seconds."""


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
    stalls: dict[str, list[float]] = {"ours": [], "RichLog": [], "Log": []}

    async def timed(name: str, side: Callable[[list[bytes]], Awaitable[Timed]]) -> float:
        seconds, stall = await side(pieces)
        stalls[name].append(stall * 1e3)
        return LINES / seconds

    values = await take_turns(
        {
            "ours": lambda: timed("ours", _ours),
            "RichLog": lambda: timed("RichLog", _rich_log),
            "Log": lambda: timed("Log", _log),
        },
        rounds,
        say,
    )
    results: list[Result] = []
    for peer in ("RichLog", "Log"):
        results.append(
            Comparison(
                f"log.lines.{peer}",
                "20,000 lines into LineBuffer and LogView, until the last one is drawn",
                f"the same lines into textual's {peer}",
                "lines/s",
                "higher",
                values["ours"],
                values[peer],
            )
        )
        results.append(
            Comparison(
                f"log.stall.{peer}",
                "longest time that the event loop stood still meanwhile",
                f"the same with {peer}",
                "ms",
                "lower",
                tuple(stalls["ours"][-rounds:]),
                tuple(stalls[peer][-rounds:]),
            )
        )
    return results


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


async def _ours(pieces: list[bytes]) -> Timed:
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

    timed = await _timed(view, feed, pieces, flush)
    _complete(len(buffer))
    return timed


async def _rich_log(pieces: list[bytes]) -> Timed:
    log = RichLog()

    def write(lines: list[str]) -> None:
        for line in lines:
            log.write(line)

    timed = await _timed(log, _text_lines(write), pieces, lambda: None)
    _complete(len(log.lines))
    return timed


async def _log(pieces: list[bytes]) -> Timed:
    log = Log()

    def write(lines: list[str]) -> None:
        log.write("".join(f"{line}\n" for line in lines))  # write_lines() loses empty ones

    timed = await _timed(log, _text_lines(write), pieces, lambda: None)
    _complete(log.line_count)
    return timed


def _text_lines(write: Callable[[list[str]], object]) -> Feed:
    """Whole lines as text, as textual's widgets want them."""
    rest = b""

    def feed(piece: bytes) -> None:
        nonlocal rest
        *whole, rest = (rest + piece).split(b"\n")
        write([line.decode("utf-8", "replace") for line in whole])

    return feed


def _complete(count: int) -> None:
    if count != LINES:
        raise RuntimeError(f"{count} of {LINES} lines are in the view")


async def _timed(
    view: ScrollView, feed: Feed, pieces: list[bytes], finish: Callable[[], None]
) -> Timed:
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
    peer="textual's RichLog and its Log",
    why="a host that floods its log must not freeze the keys",
    rounds=7,
    run=run,
)
