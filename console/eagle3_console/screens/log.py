"""A run's whole output, as its worker wrote it."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from eagle3_console import formats
from eagle3_console.clipboard import copied, saved
from eagle3_console.errors import ConsoleError
from eagle3_console.hosttext import clean
from eagle3_console.logbuffer import LineBuffer, Search
from eagle3_console.logfilter import Level, Wanted
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.logview import LogView
from eagle3_console.widgets.panel import Panel

from .base import ConsoleScreen
from .pages import Feed

#: What is looked for when the log is opened at an error.
FIRST_ERROR = r"Traceback \(most recent call last\)"
ANY_ERROR = r"\b(ERROR|CRITICAL|FATAL)\b|\b\w+Error\b"
#: Where an error begins, for the jumps from one to the next.
ERRORS = re.compile(
    rb"Traceback \(most recent call last\)|\b(?:ERROR|CRITICAL|FATAL)\b|Fatal Python error"
    rb"|^(?:\w+\.)*\w*(?:Error|Exception)(?:: |$)|NCCL WARN|Segmentation fault|\bKilled$"
)
LEVELS: dict[Level, str] = {"all": "", "warnings": "warnings and errors", "errors": "errors only"}
#: Seconds between two redraws while lines come in.
_FLUSH = 0.05
#: Lines searched before others get their turn.
_SLICE = 20_000


class LogHead(Panel):
    """Which run, how many lines, and whether the end is followed."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self.words = ""
        self.mark = Content("")

    def lines(self, state: State, width: int) -> list[Content]:
        run = state.find(self.run)
        name = f"LOG  run {run.number} {clean(run.profile)}" if run else f"LOG  {clean(self.run)}"
        left = ink.row((name, ink.STRONG), "   ", (self.words, ink.DIM))
        return [ink.ends(left, self.mark, width)]


class LogScreen(ConsoleScreen):
    KEYS: ClassVar[tuple[str, ...]] = (
        "search",
        "hit",
        "error",
        "level",
        "process",
        "follow",
        "copy",
        "save",
        "back",
        "help",
    )
    DEFAULT_CSS = """
    LogScreen #body { padding: 0; }
    LogScreen Input { display: none; height: 1; padding: 0 1; background: $panel; }
    LogScreen Input.-textual-compact { padding: 0 1 !important; }
    LogScreen Input.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search"),
        Binding("n", "hit(1)", "next hit"),
        Binding("N", "hit(-1)", "previous hit", show=False),
        Binding("e,right_square_bracket", "error(1)", "next error"),
        Binding("E,left_square_bracket", "error(-1)", "previous error", show=False),
        Binding("v", "level", "level", tooltip="all lines, warnings and errors, errors only"),
        Binding("t", "process", "rank", tooltip="the lines of one process, then of the next"),
        Binding("y", "copy", "copy", tooltip="copy the lines in sight"),
        Binding("w", "save", "save", tooltip="write the log, as it came, to a file here"),
    ]

    def __init__(
        self,
        state: State,
        run: str,
        feed: Feed,
        *,
        at_error: bool = False,
        at_line: int | None = None,
    ) -> None:
        """``at_line`` is the line to open at, ``at_error`` goes to the first error instead."""
        super().__init__(state)
        self.run = run
        self._feed = feed
        self._at_error = at_error and at_line is None
        self._at_line = at_line
        """Whether to go to the first error once it has been read."""
        self.buffer = LineBuffer()
        self.flushing = False
        self._ended = False
        self._caught_up = False

    def body(self) -> ComposeResult:
        yield LogHead(self.run)
        yield LogView(self.buffer)
        yield Input(
            placeholder="search: a regular expression, enter finds, esc leaves",
            select_on_focus=False,
            compact=True,
        )

    @property
    def view(self) -> LogView:
        return self.query_one(LogView)

    def on_mount(self) -> None:
        super().on_mount()
        self.view.focus()
        self.begin(self._read, "read")
        self._flush()

    def target_run(self) -> str:
        return self.run

    async def _read(self) -> None:
        try:
            async for piece in self._feed():
                self.buffer.add(piece.data)
                self._ended, self._caught_up = piece.ended, piece.caught_up
                self._soon()
                if self._at_error:
                    self._go_to_error()
                if self._at_line is not None and self.buffer.whole > self._at_line:
                    self._go_to_line(self._at_line)
                await asyncio.sleep(0)
        except ConsoleError as error:
            self.complain(error.problem)
        self._soon()

    def _go_to_line(self, line: int) -> None:
        self._at_line = None
        view = self.view
        view.search, view.hit = Search.of(FIRST_ERROR), line
        view.update_lines()
        view.go_to(line)

    def _go_to_error(self) -> None:
        """Stand on the first traceback, else, when all was read, on the first line of an error."""
        buffer, found = self.buffer, None
        for pattern in (FIRST_ERROR, ANY_ERROR):
            search = Search.of(pattern)
            found = buffer.find(search.data, buffer.first, buffer.end, 1)
            if found is not None or not self._caught_up:
                break
        if found is None and not self._caught_up:
            return
        self._at_error = False
        if found is None:
            self.notify("No traceback and no error stands in this log; this is its end.")
            return
        view = self.view
        view.search, view.hit = search, found
        view.update_lines()
        view.go_to(found)

    def _soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            self.set_timer(_FLUSH, self._flush)

    def _flush(self) -> None:
        self.flushing = False
        if not self.view.filter.wanted.everything:
            self.begin(self._judge, "judge")
            return
        self.view.update_lines()
        self.on_log_view_moved()

    async def _judge(self) -> None:
        """Let the filter look at the lines that have come."""
        await self._look_at_all()
        self.view.update_lines()
        self.on_log_view_moved()

    async def _look_at_all(self) -> None:
        more = True
        while more:
            more = self.view.filter.judge(_SLICE)
            await asyncio.sleep(0)

    def on_log_view_moved(self, _: LogView.Moved | None = None) -> None:
        """Say what the view does now."""
        view, head = self.view, self.query_one(LogHead)
        number = len(self.buffer)
        words = [f"{formats.count(number)} line{'' if number == 1 else 's'}"]
        wanted = view.filter.wanted
        if not wanted.everything:
            which = [
                LEVELS[wanted.level],
                *([_called(wanted.process)] if wanted.process is not None else []),
            ]
            words = [
                f"{formats.count(len(view.filter))} of {words[0]}: {', '.join(filter(None, which))}"
            ]
        if self.buffer.first:
            words.append(f"{formats.count(self.buffer.first)} older ones dropped from memory")
        if not self._caught_up and not self._ended:
            words.append("reading")
        head.words = " · ".join(words)
        if self._ended and self._caught_up:
            head.mark = Content.styled("· the run has ended", ink.DIM)
        elif view.follow:
            head.mark = Content.styled("▶ following", ink.NOW)
        else:
            head.mark = Content.styled("! not following, F follows", ink.LOOK)
        head.show(self.state)

    # --------------------------------------------------------------------- what is shown

    def action_level(self) -> None:
        """All lines, warnings and errors, errors only, all again."""
        levels = list(LEVELS)
        now = self.view.filter.wanted
        self._choose(Wanted(levels[(levels.index(now.level) + 1) % len(levels)], now.process))

    def action_process(self) -> None:
        """One process after the other, then all of them again."""
        self.begin(self._next_process, "judge")

    async def _next_process(self) -> None:
        shown = self.view.filter
        await self._look_at_all()  # only then is it known who wrote here
        now, names = shown.wanted, [None, *shown.processes]
        at = names.index(now.process) if now.process in names else 0
        self._choose(Wanted(now.level, names[(at + 1) % len(names)]))

    def _choose(self, wanted: Wanted) -> None:
        view = self.view
        top = view.top_line
        view.filter.choose(wanted)
        self.begin(partial(self._choose_all, top), "judge")

    async def _choose_all(self, top: int) -> None:
        if not self.view.filter.wanted.everything:
            await self._look_at_all()
        self.view.refilter(top)
        self.on_log_view_moved()

    def action_error(self, step: int) -> None:
        """Go to where the next error begins, or the one before."""
        self.begin(partial(self._go_to_next_error, step), "find")

    async def _go_to_next_error(self, step: int) -> None:
        view, buffer = self.view, self.buffer
        edge = view.top_line - 1 if step > 0 else view.bottom_line + 1
        at = view.hit if view.hit is not None else edge
        stop = buffer.end if step > 0 else buffer.first - 1
        search = Search("an error", ERRORS, re.compile(ANY_ERROR))
        while (found := await self._scan(search, at + step, stop, step)) is not None:
            at = found
            begins = found == buffer.first or not ERRORS.search(buffer.raw(found - 1))
            if begins and view.filter.shows(found):
                view.hit = found
                view.go_to(found)
                return
        self.notify(f"No error {'below' if step > 0 else 'above'} here.")

    def action_copy(self) -> None:
        """The lines in sight, to the clipboard of the terminal and to a file."""
        lines = self.view.in_sight()
        self.notify(copied(self.app, "\n".join(lines), f"{len(lines)} lines"), markup=False)

    def action_save(self) -> None:
        """The whole log as it came, into a file on this machine."""
        buffer = self.buffer
        lines = (buffer.raw(number) + b"\n" for number in range(buffer.first, buffer.end))
        dropped = f" (without {buffer.first} older lines)" if buffer.first else ""
        self.notify(saved(f"run{self.run}.log", lines) + dropped, markup=False)

    # --------------------------------------------------------------------- search

    def action_search(self) -> None:
        box = self.query_one(Input)
        box.add_class("-open")
        box.focus()

    def action_back(self) -> None:
        box = self.query_one(Input)
        if box.has_class("-open"):
            self._close_search()
        elif self.view.search is not None:
            self.view.search = self.view.hit = None
            self.view.refresh()
        else:
            super().action_back()

    def _close_search(self) -> None:
        self.query_one(Input).remove_class("-open")
        self.view.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_search()
        if not event.value:
            self.view.search = self.view.hit = None
            self.view.refresh()
            return
        self.view.search, self.view.hit = Search.of(event.value), None
        self.action_hit(1)

    def action_hit(self, step: int) -> None:
        """The next or previous line that matches; at an end the search goes round."""
        if self.view.search is None:
            self.action_search()
            return
        self.run_worker(self._find(step), exclusive=True, group="find")

    async def _find(self, step: int) -> None:
        view, buffer = self.view, self.buffer
        search = view.search
        if search is None or not len(buffer):
            return
        start = view.top_line if view.hit is None else view.hit + step
        found = await self._scan(search, start, buffer.end if step > 0 else buffer.first - 1, step)
        if found is None:
            begin = buffer.first if step > 0 else buffer.end - 1
            found = await self._scan(search, begin, start, step)
        if found is None:
            self.notify(f"Nothing matches {clean(search.said)}", markup=False)
            return
        view.hit = found
        view.go_to(found)

    async def _scan(self, search: Search, start: int, stop: int, step: int) -> int | None:
        while (stop - start) * step > 0:
            end = start + step * min(_SLICE, abs(stop - start))
            found = self.buffer.find(search.data, start, end, step)
            if found is not None:
                return found
            start = end
            await asyncio.sleep(0)
        return None


def _called(process: str) -> str:
    return clean(process) or "the run's own process"
