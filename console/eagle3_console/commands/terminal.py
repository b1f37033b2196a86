"""Where a command's words go: results to stdout, messages to stderr, questions to the terminal.

Every line is cleaned of escapes and control characters here, once: much of
what is printed came from a host.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from eagle3_agent.protocol import to_json
from eagle3_console.errors import error
from eagle3_console.hosttext import clean, crop

Colour = str
_COLOURS = {"red": "31", "green": "32", "amber": "33", "dim": "2", "bold": "1"}


class Terminal:
    """The three standard streams as one command uses them."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        stdin: TextIO | None = None,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.as_json = as_json
        self._in = stdin or sys.stdin
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self.on_interrupt = ""
        """What to say when Ctrl-C ends this command: what goes on without it."""
        self._rewriting: TextIO | None = None

    # ------------------------------------------------------------------ results

    def lines(self, lines: Iterable[str], colour: Colour = "") -> None:
        """A result for a person: not printed with ``--json``."""
        if not self.as_json:
            for line in lines:
                self._print(self._out, line, colour)

    def line(self, line: str, colour: Colour = "") -> None:
        self.lines([line], colour)

    def object(self, value: Any) -> None:
        """The one object of ``--json``, or one line of a stream of them; nothing without it."""
        if self.as_json:
            self._out.write(json.dumps(to_json(value), ensure_ascii=True, allow_nan=False) + "\n")
            self._out.flush()

    @property
    def is_screen(self) -> bool:
        """Results go to a person's screen, not into a pipe or a file."""
        return self._out.isatty()

    def raw(self, data: bytes) -> None:
        """Bytes of a host's file as they are: for pipes and files only."""
        self._out.flush()
        buffer = getattr(self._out, "buffer", None)
        if buffer is None:
            self._out.write(data.decode("utf-8", "replace"))
        else:
            buffer.write(data)
            buffer.flush()

    # ------------------------------------------------------------------ messages

    def say(self, text: str, colour: Colour = "") -> None:
        for line in text.split("\n"):
            self._print(self._err, line, colour)

    @property
    def _progress_stream(self) -> TextIO:
        return self._err if self.as_json else self._out

    @property
    def rewrites(self) -> bool:
        """Progress is one line that is written over; otherwise a line now and then."""
        return self._progress_stream.isatty() and os.environ.get("TERM", "") != "dumb"

    def progress(self, line: str) -> None:
        """Show how far it is, in place of the progress shown before where that can be done."""
        stream = self._progress_stream
        if not self.rewrites:
            self._print(stream, line, "")
            return
        self._rewrite(stream, line)

    def _rewrite(self, stream: TextIO, line: str) -> None:
        width = shutil.get_terminal_size().columns
        stream.write("\r" + crop(clean(line), width - 1) + "\x1b[K")
        stream.flush()
        self._rewriting = stream

    @property
    def err_rewrites(self) -> bool:
        return self._err.isatty() and os.environ.get("TERM", "") != "dumb"

    def status(self, line: str) -> None:
        """What is waited for, on stderr, written over by what comes next; nothing elsewhere."""
        if self.err_rewrites:
            self._rewrite(self._err, line)

    def milestone(self, line: str, colour: Colour = "") -> None:
        """A line that stays, among the progress."""
        self._print(self._progress_stream, line, colour)

    def settle(self) -> None:
        """Take away a progress line that is still open, so that the next text starts afresh."""
        if self._rewriting is not None:
            self._rewriting.write("\r\x1b[K")
            self._rewriting.flush()
            self._rewriting = None

    def _print(self, stream: TextIO, line: str, colour: Colour) -> None:
        self.settle()
        text = clean(line)
        if colour and stream.isatty() and not os.environ.get("NO_COLOR"):
            text = f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"
        stream.write(text + "\n")
        stream.flush()

    # ------------------------------------------------------------------ questions

    @property
    def interactive(self) -> bool:
        """There is a person who can answer."""
        return self._in.isatty() and self._err.isatty()

    def confirm(self, question: str, way_out: str) -> bool:
        """Ask, default No.  Raises ConsoleError with ``way_out`` where nobody can be asked."""
        if not self.interactive:
            raise error(
                "Nobody can be asked here",
                f"There is no terminal for the question: {question}",
                way_out,
                "usage",
            )
        self.settle()
        with interruptible():  # before the question is seen: its answer can be Ctrl-C at once
            self._err.write(clean(question) + " [y/N] ")
            self._err.flush()
            answer = self._in.readline()
        return answer.strip().lower() in ("y", "yes")

    def secret(self, prompt: str) -> str:
        """Ask without echo."""
        self.settle()
        with interruptible():
            return getpass.getpass(clean(prompt) + " ", stream=self._err)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a blocking call; asyncio's own handler would only cancel the task."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
