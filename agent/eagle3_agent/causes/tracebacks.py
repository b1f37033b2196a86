"""The exceptions in a log of many processes, each of its own process's lines; pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from .loglines import Line

TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"

_FRAME = re.compile(r'\s+File "([^"\n]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?\s*$')
_FATAL_FRAME = re.compile(r'\s+File "([^"\n]{1,1000})", line (\d{1,9}) in (.{1,200})$')
_RAISED = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$", re.DOTALL)
_MARKS = re.compile(r"\s*[\^~]+\s*$")
#: What stands before a line of an exception group.
_GROUP = re.compile(r"(?:  )*[|+](?:-\+)?[ -]?(?:-+ \d+ -+|-+)?")

_FATAL = re.compile(r"Fatal Python error: (.{1,300})")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^'\n]{1,200})'")
_WHAT = re.compile(r"\s*what\(\): +(.{0,2000})")
_SHELL = re.compile(
    r"(?:.{0,200}\s)?(Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|"
    r"Floating point exception)(?: +\(core dumped\))?$"
)

#: Exceptions that code meets and handles all the time: raised first, they are seldom the cause.
_LOOKUPS = frozenset(
    ("KeyError", "AttributeError", "StopIteration", "IndexError", "LookupError")
) | {"queue.Empty", "_queue.Empty", "BlockingIOError"}
#: Frames that pass a call on: the one below them says more.
_GLUE = re.compile(
    r"/torch/(?:_ops|nn/modules/module|utils/_contextlib|_dynamo/eval_frame|_compile)\.py$"
    r"|/transformers/utils/(?:generic|deprecation|output_capturing)\.py$"
    r"|/(?:contextlib|functools|threading)\.py$|/concurrent/futures/\w+\.py$"
    r"|^<frozen |/importlib/__init__\.py$"
)

#: Lines of a message kept after its first.
_MORE = 6
_FRAMES = 400


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str = ""
    source: str = ""


@dataclass(frozen=True)
class Raised:
    """One exception as the log shows it."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()

    @property
    def where(self) -> Frame | None:
        """The innermost frame that is not glue."""
        told = [f for f in self.frames if not _GLUE.search(f.file)]
        frames = told or self.frames
        return frames[-1] if frames else None

    @property
    def short_type(self) -> str:
        return self.type.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Found:
    """A chain of exceptions that one process wrote, and where in the log."""

    process: str
    level: str
    chain: tuple[Raised, ...]
    """In the order in which they were raised; never empty."""
    line: int
    """Number of the log's line with which it begins, from 0."""
    end: int
    before: tuple[str, ...] = ()
    """The lines of the same process before it, at most five."""
    ignored: bool = False
    """Printed and passed over: ``Exception ignored in``, or logged as less than an error."""

    @property
    def first(self) -> Raised:
        """The one that the others followed from, lookups that failed in passing left out."""
        told = [r for r in self.chain if r.type not in _LOOKUPS]
        return (told or list(self.chain))[0]

    @property
    def last(self) -> Raised:
        return self.chain[-1]


@dataclass
class _Open:
    """A process's traceback that is being read."""

    line: int
    level: str
    before: tuple[str, ...]
    ignored: bool
    chain: list[Raised] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    raised: tuple[str, str] | None = None
    more: list[str] = field(default_factory=list)
    waits: bool = False
    """A line said that another exception of the same chain follows."""
    native: bool = False


class Tracebacks:
    """Feed it the lines in order; ``take`` hands over what is complete."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._recent: dict[str, deque[str]] = {}
        self._done: list[Found] = []

    @property
    def busy(self) -> bool:
        """A traceback is open: every line matters."""
        return bool(self._open)

    def take(self) -> list[Found]:
        done, self._done = self._done, []
        return done

    def remember(self, line: Line) -> None:
        """A line that may stand before an error."""
        if len(self._recent) > 256:
            self._recent.clear()  # no job has as many processes: names made up by the log
        text = f"{line.level} {line.text}".strip()
        if text:
            self._recent.setdefault(line.process, deque(maxlen=5)).append(text)

    def add(self, line: Line, number: int) -> None:
        opened = self._open.get(line.process)
        text = _without_group(line.text)
        if TRACEBACK in text[:200]:
            self._begin(line, number, opened)
        elif opened is None:
            if not self._begin_native(line, number):
                self.remember(line)
        elif opened.native:
            self._go_on_native(line, opened, text, number)
        elif opened.raised is None:
            self._go_on(line, opened, text, number)
        else:
            self._after(line, opened, text, number)

    def close(self, number: int) -> None:
        """The log ends here: what is open is complete."""
        for process in list(self._open):
            self._finish(process, number)

    # ---------------------------------------------------------------- Python's tracebacks

    def _begin(self, line: Line, number: int, opened: _Open | None) -> None:
        if opened is not None and opened.waits:
            self._seal(opened)
            opened.waits = False
            return
        if opened is not None:
            self._finish(line.process, number)
        recent = tuple(self._recent.get(line.process, ()))
        ignored = line.level in ("DEBUG", "INFO", "WARNING") or any(
            said.lstrip().startswith("Exception ignored in") for said in recent[-1:]
        )
        if len(self._open) < 256:
            self._open[line.process] = _Open(number, line.level, recent, ignored)

    def _go_on(self, line: Line, opened: _Open, text: str, number: int) -> None:
        if frame := _FRAME.match(text):
            if len(opened.frames) < _FRAMES:
                place = Frame(frame[1], int(frame[2]), (frame[3] or "").strip())
                opened.frames.append(place)
        elif not text.strip() or _MARKS.match(text):
            pass
        elif text[0].isspace():
            if opened.frames and not opened.frames[-1].source:
                last = opened.frames[-1]
                shown = Frame(last.file, last.line, last.function, text.strip()[:300])
                opened.frames[-1] = shown
        elif raised := _RAISED.match(text):
            opened.raised = (raised[1], (raised[2] or "").strip())
        elif opened.frames:
            self._finish(line.process, number)
            self.add(line, number)

    def _after(self, line: Line, opened: _Open, text: str, number: int) -> None:
        """Behind the line that names the exception: more of its message, a chain, or the end."""
        plain = text.strip()
        if plain in (_CAUSE, _CONTEXT):
            opened.waits = True
        elif not plain:
            pass
        elif opened.waits or (line.level and line.level != opened.level):
            self._finish(line.process, number)
            self.add(line, number)
        elif len(opened.more) < _MORE and not _speaks_of_itself(line, opened):
            opened.more.append(text.rstrip()[:1000])
        else:
            self._finish(line.process, number)
            self.add(line, number)

    def _seal(self, opened: _Open) -> None:
        kind, message = opened.raised or ("", "")
        if kind:
            whole = "\n".join([message, *opened.more]).strip()
            opened.chain.append(Raised(kind, whole, tuple(opened.frames)))
        opened.frames, opened.raised, opened.more = [], None, []

    def _finish(self, process: str, number: int) -> None:
        opened = self._open.pop(process)
        self._seal(opened)
        if opened.chain:
            self._done.append(
                Found(
                    process,
                    opened.level,
                    tuple(opened.chain),
                    opened.line,
                    number,
                    opened.before,
                    opened.ignored,
                )
            )
        self._recent.pop(process, None)

    # ---------------------------------------------------------------- crashes below Python

    def _begin_native(self, line: Line, number: int) -> bool:
        text = line.text
        if found := _FATAL.match(text):
            raised = ("Fatal Python error", found[1].strip())
        elif found := _TERMINATE.match(text):
            raised = (found[1], "")
        elif found := _SHELL.match(text):
            self._done.append(
                Found(
                    line.process,
                    line.level,
                    (Raised(found[1], ""),),
                    number,
                    number + 1,
                    tuple(self._recent.get(line.process, ())),
                )
            )
            return True
        else:
            return False
        recent = tuple(self._recent.get(line.process, ()))
        opened = _Open(number, line.level, recent, ignored=False, raised=raised, native=True)
        self._open[line.process] = opened
        return True

    def _go_on_native(self, line: Line, opened: _Open, text: str, number: int) -> None:
        kind, _ = opened.raised or ("", "")
        if found := _WHAT.match(text):
            opened.raised = (kind, found[1].strip())
        elif found := _FATAL_FRAME.match(text):
            # innermost first here: put before what is there, as Python's tracebacks have it
            if len(opened.frames) < _FRAMES:
                opened.frames.insert(0, Frame(found[1], int(found[2]), found[3]))
        elif not text.strip() or text.startswith(("Current thread", "Thread ", "Python runtime")):
            if text.startswith("Thread "):
                self._finish(line.process, number)
        else:
            self._finish(line.process, number)
            self.add(line, number)


def _without_group(text: str) -> str:
    """A line of an exception group without the group's ruler."""
    if text.lstrip(" ").startswith(("|", "+ ", "+-")):
        return _GROUP.sub("", text, count=1)
    return text


def _speaks_of_itself(line: Line, opened: _Open) -> bool:
    """Whether a line behind an exception is one of its own, not more of the message."""
    if opened.level:  # a logger writes its prefix before every line of a message
        return line.level != opened.level or line.text.startswith(("Traceback", "EngineCore"))
    text = line.text
    starts = ("Process ", "Exception ignored", "[rank", "ERROR", "INFO", "WARNING", "[W", "[E")
    return bool(line.level) or text.startswith(starts) or "NCCL " in text[:120]
