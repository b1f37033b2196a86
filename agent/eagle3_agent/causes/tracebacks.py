"""The exceptions in a log of many processes, each of its own process's lines; pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

from . import crashes
from .found import Found, Frame, Raised
from .loglines import Line, rank_of

TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"

_FRAME = re.compile(r'\s+File "([^"\n]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?\s*$')
_FATAL_FRAME = re.compile(r'\s+File "([^"\n]{1,1000})", line (\d{1,9}) in (.{1,200})$')
#: A type is capitalised, but for a few of the standard library: ``struct.error``.
_RAISED = re.compile(
    r"((?:[A-Za-z_][\w<>]{0,80}\.){0,12}(?:_*[A-Z]\w{0,100}|error|timeout|gaierror|herror)"
    r"(?:\([A-Za-z_]\w{0,100}\))?)(?:: ?(.*))?$",
    re.DOTALL,
)
_NO_TYPES = ("INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL", "NOTE", "Process", "File", "Thread")
_MARKS = re.compile(r"\s*[\^~]+\s*$")
#: What stands before a line of an exception group.
_GROUP = re.compile(r"(?:  )*[|+](?:-\+)?[ -]?(?:-+ (?:\d+|\.\.\.) -+|-+)?")
_SPAWNED = re.compile(r"-- Process (\d{1,5}) terminated with")

_FATAL = re.compile(r"Fatal Python error: (.{1,300})")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^'\n]{1,200})'")
_WHAT = re.compile(r"\s*what\(\): +(.{0,2000})")

#: Headers of errors that the program meets and lives with, by its own words.
_LIVED_WITH = re.compile(
    r"Failed to (?:load|import) (?:the )?(?:general )?plugin|[Ii]gnor(?:ed|ing)\b|[Ff]all(?:ing)? ?"
    r"back|[Ss]kipping|[Rr]etrying|Failed to report usage"
)
_HEADERS = ("ERROR ", "WARNING ", "CRITICAL ")
#: Lines behind an exception that are not more of its message.
_OTHERS = re.compile(
    r"Process |Exception ignored|\[rank|(?:ERROR|INFO|WARNING)\b|\[[WE]\d|\*\*\*|sys:\d|srun: "
    r"|slurmstepd: |/\S{1,300}:\d+: |frame #\d|Exception raised from |Error in sys\.|EngineCore\b"
    r"|-- Process |Exception in thread|Task exception|={10}|-{10}"
)

#: Lines of a message kept after its first.
_MORE = 6
#: Frames kept of one exception: the outermost half and the innermost.
_FRAMES = 40
#: Lines of others that may stand within a traceback without a prefix.
_FOREIGN = 8
_PROCESSES = 256


@dataclass
class _Open:
    """A process's traceback that is being read."""

    process: str
    line: int
    level: str
    before: tuple[str, ...]
    ignored: bool
    chain: list[Raised] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    raised: tuple[str, str] | None = None
    more: list[str] = field(default_factory=list)
    link: str = ""
    """The line that said that another exception of the same chain follows."""
    native: bool = False
    others: bool = False
    """The frames that come are those of a thread that did not crash."""
    foreign: int = 0
    last: int = 0

    def copy(self) -> _Open:
        return replace(self, chain=[*self.chain], frames=[*self.frames], more=[*self.more])

    def frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) > _FRAMES:
            del self.frames[_FRAMES // 2]


#: The process, and the stamp of its logger's record: two records may come mixed.
_Key = tuple[str, str]


class Tracebacks:
    """Feed it the lines in order; ``take`` hands over what is complete."""

    def __init__(self) -> None:
        self._open: dict[_Key, _Open] = {}
        self._recent: dict[str, deque[str]] = {}
        self._done: list[Found] = []

    @property
    def busy(self) -> bool:
        """A traceback is open: every line matters."""
        return bool(self._open)

    def take(self) -> list[Found]:
        done, self._done = self._done, []
        return done

    def copy(self) -> Tracebacks:
        """The same state, to be read on by itself."""
        same = Tracebacks()
        same._open = {key: opened.copy() for key, opened in self._open.items()}
        same._recent = {name: deque(said, maxlen=5) for name, said in self._recent.items()}
        return same

    def remember(self, line: Line) -> None:
        """A line that may stand before an error."""
        if len(self._recent) > _PROCESSES:
            self._recent.clear()  # no job has as many processes: names made up by the log
        text = f"{line.level} {line.text}".strip()
        if text:
            self._recent.setdefault(line.process, deque(maxlen=5)).append(text[:500])

    def before(self, line: Line) -> tuple[str, ...]:
        """What the line's process said last, at most five lines."""
        return tuple(self._recent.get(line.process, ()))

    def last(self, process: str) -> tuple[str, ...]:
        """What a process of the same rank as ``process`` said last, at most five lines."""
        rank = rank_of(process)
        same = [said for name, said in self._recent.items() if rank_of(name) == rank]
        return tuple(same[-1]) if same and rank is not None else ()

    def add(self, line: Line, number: int) -> None:
        key = (line.process, line.stamp)
        opened = self._open.get(key)
        if opened is None and self._open:
            self._end_others(key, number)
        text = _without_group(line.text)
        if line.bar and not text.strip():
            return
        if TRACEBACK in text[:200]:
            self._begin(line, key, number, opened)
        elif opened is None:
            if not self._begin_native(line, key, number):
                self.remember(line)
        else:
            opened.last = number
            if opened.native:
                self._go_on_native(line, key, opened, text, number)
            elif opened.raised is None:
                self._go_on(line, key, opened, text, number)
            else:
                self._after(line, key, opened, text, number)

    def close(self, number: int, idle: int = 0) -> None:
        """End what got no line since ``idle`` lines; without it the log ends here."""
        for key, opened in list(self._open.items()):
            if not idle or number - opened.last > idle:
                self._finish(key, number)

    def _end_others(self, key: _Key, number: int) -> None:
        """A record of the same process ends an exception that was named under another stamp."""
        for other, opened in list(self._open.items()):
            if other[0] == key[0] and other != key and opened.raised and not opened.link:
                self._finish(other, number)

    # ---------------------------------------------------------------- Python's tracebacks

    def _begin(self, line: Line, key: _Key, number: int, opened: _Open | None) -> None:
        if opened is not None and opened.link:
            self._seal(opened, handled=opened.link == _CONTEXT)
            opened.link, opened.last = "", number
            return
        if opened is not None:
            self._finish(key, number)
        recent = self.before(line)
        said = recent[-1] if recent else ""
        ignored = (
            line.level in ("DEBUG", "INFO", "WARNING")
            or said.lstrip().startswith("Exception ignored")
            or (said.startswith(_HEADERS) and _LIVED_WITH.search(said) is not None)
        )
        spawned = _SPAWNED.match(said)
        process = f"rank{spawned[1]}" if spawned and not line.process else line.process
        if len(self._open) < _PROCESSES:
            self._open[key] = _Open(process, number, line.level, recent, ignored, last=number)

    def _go_on(self, line: Line, key: _Key, opened: _Open, text: str, number: int) -> None:
        if frame := _FRAME.match(text):
            opened.frame(Frame(frame[1], int(frame[2]), (frame[3] or "").strip()))
        elif not text.strip() or _MARKS.match(text):
            pass
        elif text[0].isspace():
            last = opened.frames[-1] if opened.frames else None
            if last is not None and not last.source and not text.startswith("  [Previous line"):
                source = text.strip()[:300]
                opened.frames[-1] = Frame(last.file, last.line, last.function, source)
        elif _FATAL.match(text) or _TERMINATE.match(text):
            self._finish(key, number)
            self.add(line, number)
        elif (raised := _RAISED.match(text)) and raised[1] not in _NO_TYPES:
            opened.raised = (raised[1], (raised[2] or "").strip())
        else:
            opened.foreign += 1
            if opened.foreign > _FOREIGN:
                self._finish(key, number)
                self.add(line, number)

    def _after(self, line: Line, key: _Key, opened: _Open, text: str, number: int) -> None:
        """Behind the line that names the exception: more of its message, a chain, or the end."""
        plain = text.strip()
        kind, _ = opened.raised or ("", "")
        if plain in (_CAUSE, _CONTEXT):
            opened.link = plain
        elif not plain:
            pass
        elif "RayTaskError(" in kind and not opened.more and (_FRAME.match(text)):
            # Ray puts the remote traceback behind the name of the error that carries it
            opened.raised, opened.frames = None, []
            self._go_on(line, key, opened, text, number)
        elif opened.link or len(opened.more) >= _MORE or _speaks_of_itself(line, text):
            self._finish(key, number)
            self.add(line, number)
        else:
            opened.more.append(text.rstrip()[:1000])

    def _seal(self, opened: _Open, *, handled: bool = False) -> None:
        kind, message = opened.raised or ("", "")
        if kind:
            whole = "\n".join([message, *opened.more]).strip()
            opened.chain.append(Raised(kind, whole, tuple(opened.frames), handled))
        opened.frames, opened.raised, opened.more = [], None, []

    def _finish(self, key: _Key, number: int) -> None:
        opened = self._open.pop(key)
        self._seal(opened)
        if opened.chain:
            end = min(number, opened.last + 1)
            chain = tuple(opened.chain)
            where = (opened.line, end, opened.before, opened.ignored)
            self._done.append(Found(opened.process, opened.level, chain, *where))
        self._recent.pop(key[0], None)

    # ---------------------------------------------------------------- crashes below Python

    def _begin_native(self, line: Line, key: _Key, number: int) -> bool:
        recent = self.before(line)
        if found := _FATAL.match(line.text):
            raised = ("Fatal Python error", found[1].strip())
        elif found := _TERMINATE.match(line.text):
            raised = (found[1], "")
        elif single := crashes.told(line, number, recent):
            self._done.append(single)
            return True
        else:
            return False
        if len(self._open) < _PROCESSES:
            opened = _Open(line.process, number, line.level, recent, ignored=False, raised=raised)
            opened.native, opened.last = True, number
            self._open[key] = opened
        return True

    def _go_on_native(self, line: Line, key: _Key, opened: _Open, text: str, number: int) -> None:
        kind, _ = opened.raised or ("", "")
        if found := _WHAT.match(text):
            opened.raised = (kind, found[1].strip())
        elif found := _FATAL_FRAME.match(text):
            # innermost first here: put before what is there, as Python's tracebacks have it
            if not opened.others and len(opened.frames) < _FRAMES:
                opened.frames.insert(0, Frame(found[1], int(found[2]), found[3]))
        elif text.startswith(("Current thread", "Thread 0x")):
            opened.others = text.startswith("Thread") or "C stack" in text
        elif text.strip() and not text.startswith(
            ("Python runtime", "  Binary file", "  <no Pyth")
        ):
            self._finish(key, number)
            self.add(line, number)


def _without_group(text: str) -> str:
    """A line of an exception group without the group's ruler."""
    if text.lstrip(" ").startswith(("|", "+ ", "+-")):
        return _GROUP.sub("", text, count=1)
    return text


def _speaks_of_itself(line: Line, text: str) -> bool:
    """Whether a line behind an exception is one of its own, not more of the message."""
    if _FATAL.match(text) or _TERMINATE.match(text) or crashes.told(line, 0) is not None:
        return True
    return line.bar or _OTHERS.match(text) is not None or "NCCL " in text[:120]
