"""What happened first: the causal exception out of every rank's output, what followed folded; pure.

When an engine of many processes fails, one exception is the cause and dozens follow from it: the
parent that lost a worker, the other ranks whose collective broke off, pipes, cancelled calls.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eagle3_agent.protocol.values import ErrorInfo

from . import loglines
from .known import Known, recognise
from .loglines import Line, rank_of
from .tracebacks import Found, Frame, Raised, Tracebacks

#: Only lines with one of these in them can begin something while no traceback is open.
_SIGNS = re.compile(
    rb"Traceback|Fatal Python|terminate called|Killed|fault|Bus error|Aborted|Illegal instr"
    rb"|Watchdog caught|died unexpectedly|NCCL WARN|Floating point ex"
)
_WATCHDOG = re.compile(
    r"(?:\[[^\]]{1,200}\])*.{0,200}?(Watchdog caught collective operation timeout.{0,600})"
)
_DIED = re.compile(r"(?:Worker|Engine core) proc (\S{1,60}) died unexpectedly")
_NCCL_WARN = re.compile(r"NCCL WARN (.{1,400})")

#: Exceptions kept; a log that repeats one for hours does not need them all.
_MOST = 600
#: Lines without an exception after which what came before was survived.
_SURVIVED = 400

#: ``Type: message`` of what follows from another process's failure.
_SECONDARY = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
    r"|WorkerProc (?:initialization failed|hit an exception)"
    r"|Worker failed with error|Executor failed|check the stack trace above"
    r"|See stack trace|See root cause above|Engine process failed to start"
    r"|^(?:\w+\.)*(?:CancelledError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError"
    r"|ConnectionRefusedError|EOFError|KeyboardInterrupt|SystemExit|GeneratorExit"
    r"|BrokenProcessPool|ProcessExitedException|ProcessRaisedException|ActorDiedError"
    r"|ClosedResourceError|ChildFailedError)\b"
    r"|^RuntimeError: [Cc]ancelled|Event loop is closed|cannot schedule new futures"
    r"|remote process exited|Connection closed by (?:remote )?peer|Connection reset by peer"
    r"|NCCL communicator was aborted|ncclRemoteError|Broken pipe|Socket closed"
    r"|watchdog thread terminated|due to Socket Timeout|\[c10d\] recvVector|recvValue failed"
    r"|died unexpectedly|handle is closed|zmq\.error\.(?:ContextTerminated|ZMQError)"
    r"|The actor died|Aborted$|^Aborted"
)
#: They are a consequence when something else failed, and a cause when nothing did.
_LATE = re.compile(r"Watchdog caught|RPC call to \w+ timed out|TimeoutError|^Killed|timed out")


@dataclass(frozen=True)
class Folded:
    """What followed, one line for all of a kind."""

    text: str
    """``Type: message``, short."""
    processes: tuple[str, ...]
    line: int
    """Of the log, of the first of them."""


@dataclass(frozen=True)
class Cause:
    """What a failed run's screen says."""

    type: str
    message: str
    process: str = ""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """Every rank that failed in the same way."""
    where: Frame | None = None
    line: int | None = None
    """Number of the log's line where it begins, from 0; None where the log does not show it."""
    before: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """What NCCL said itself, before."""
    known: Known | None = None
    followed: tuple[Folded, ...] = ()
    only_followed: bool = False
    """The log holds nothing but consequences: the cause itself left no words."""

    @property
    def sentence(self) -> str:
        """What happened first, in one sentence; never empty."""
        who = _who(self)
        what = _short(self.type)
        first = _headline(self.message)
        if first:
            what += f": {first}"
        elif self.where is not None:
            what += f" without a message, raised by `{self.where.source or self.where.function}`"
        return f"{who}{what}"


class CauseFinder:
    """Feed it a log's bytes in order, and ask at any time."""

    def __init__(self) -> None:
        self.lines = 0
        """Whole lines seen."""
        self._tracebacks = Tracebacks()
        self._found: list[Found] = []
        self._warned: list[tuple[int, str]] = []
        self._rest = b""
        self._quiet = 0

    def add(self, data: bytes) -> None:
        """Look at the next bytes; a line that is not finished waits for the next call."""
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) < 1 << 20 else rest[: 1 << 16]
        for raw in whole:
            self._line(raw)

    def _line(self, raw: bytes) -> None:
        number = self.lines
        self.lines += 1
        if not self._tracebacks.busy and not _SIGNS.search(raw):
            self._quiet += 1
            if self._quiet % 4 == 0 or len(raw) < 4096:
                self._tracebacks.remember(loglines.parse(loglines.decode(raw[:1024])))
            return
        line = loglines.parse(loglines.decode(raw))
        self._special(line, number)
        self._tracebacks.add(line, number)
        self._keep(self._tracebacks.take())

    def _special(self, line: Line, number: int) -> None:
        """Lines that name a failure without a traceback."""
        if found := _WATCHDOG.search(line.text):
            self._keep([_single(line, number, "Timeout", found[1])])
        elif found := _DIED.search(line.text):
            self._keep([_single(replace(line, process=found[1]), number, "Died", found[0])])
        elif (found := _NCCL_WARN.search(line.text)) and len(self._warned) < 64:
            self._warned.append((number, found[1]))

    def _keep(self, found: Iterable[Found]) -> None:
        for one in found:
            self._quiet = 0
            self._found.append(one)
        if len(self._found) > _MOST:
            del self._found[: len(self._found) - _MOST]

    def cause(self, told: ErrorInfo | None = None) -> Cause | None:
        """What happened first; ``told`` is what the run's own failure event says.

        None when neither knows of any error.
        """
        burst = _last_burst([*self._found, *_pending(self._tracebacks, self._rest, self.lines)])
        causes = [f for f in burst if not _follows(f.first) and not _late(f.first)]
        late = [f for f in burst if not _follows(f.first) and _late(f.first)]
        if causes:
            return self._of(causes[0], burst, told)
        if late and (told is None or _follows(_raised(told))):
            return self._of(late[0], burst, told)
        if told is not None and not _follows(_raised(told)):
            return replace(_from_told(told), followed=_fold(burst))
        if burst:
            return replace(self._of(burst[0], burst, told), only_followed=True)
        return _from_told(told) if told is not None else None

    def _of(self, chosen: Found, burst: Sequence[Found], told: ErrorInfo | None) -> Cause:
        raised = chosen.first
        same = [f for f in burst if _alike(f.first, raised)]
        ranks = sorted({r for f in same if (r := rank_of(f.process)) is not None})
        rank = rank_of(chosen.process)
        if rank is None and told is not None and told.type.rsplit(".", 1)[-1] == raised.short_type:
            rank = told.rank
        hints = tuple(text for at, text in self._warned if at <= chosen.end)[-3:]
        return Cause(
            raised.type,
            raised.message,
            chosen.process,
            rank,
            tuple(ranks),
            raised.where,
            chosen.line,
            chosen.before,
            hints if "NCCL" in raised.message or "nccl" in raised.message else (),
            recognise(raised),
            _fold([f for f in burst if f not in same]),
        )


def _pending(tracebacks: Tracebacks, rest: bytes, number: int) -> list[Found]:
    """What is still being read, as if the log ended here; the reading itself goes on."""
    ended = copy.deepcopy(tracebacks)
    if rest:
        ended.add(loglines.parse(loglines.decode(rest)), number)
    ended.close(number + 1)
    return ended.take()


def _last_burst(found: Sequence[Found]) -> list[Found]:
    """The errors of the run's end: an error that work went on after was survived."""
    told = [f for f in sorted(found, key=lambda f: f.line) if not f.ignored]
    burst: list[Found] = []
    for one in reversed(told):
        if burst and burst[-1].line - one.end > _SURVIVED:
            break
        burst.append(one)
    return burst[::-1]


def _single(line: Line, number: int, kind: str, message: str) -> Found:
    return Found(line.process, line.level, (Raised(kind, message),), number, number + 1)


def _follows(raised: Raised) -> bool:
    return _SECONDARY.search(f"{raised.type}: {raised.message}"[:4000]) is not None


def _late(raised: Raised) -> bool:
    return _LATE.search(f"{raised.type}: {raised.message}"[:4000]) is not None


def _alike(one: Raised, other: Raised) -> bool:
    return one.type == other.type and _without_numbers(one) == _without_numbers(other)


def _without_numbers(raised: Raised) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?", "#", _headline(raised.message))[:200]


def _fold(found: Sequence[Found]) -> tuple[Folded, ...]:
    """One entry for each kind, in the order of the log."""
    kinds: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        kinds.setdefault((one.first.type, _without_numbers(one.first)), []).append(one)
    folded = []
    for same in kinds.values():
        raised = same[0].first
        text = ": ".join(p for p in (_short(raised.type), _headline(raised.message)) if p)
        names = dict.fromkeys(f.process.split(" ")[0] for f in same if f.process)
        folded.append(Folded(text[:300], tuple(names)[:16], same[0].line))
    return tuple(sorted(folded, key=lambda f: f.line))


def _raised(told: ErrorInfo) -> Raised:
    where = told.where
    frames = (Frame(where.file, where.line, where.function, where.source),) if where else ()
    return Raised(told.type, told.message, frames)


def _from_told(told: ErrorInfo) -> Cause:
    raised = _raised(told)
    return Cause(
        told.type, told.message, "", told.rank, (), raised.where, None, known=recognise(raised)
    )


def _short(kind: str) -> str:
    return kind.rsplit(".", 1)[-1]


def _headline(message: str) -> str:
    """The line of a message that says something: pydantic's stands below its count."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and re.match(r"\d+ validation errors? for ", lines[0]):
        return lines[1].removeprefix("Value error, ")
    return lines[0] if lines else ""


def _who(cause: Cause) -> str:
    if len(cause.ranks) > 1:
        shown = ", ".join(map(str, cause.ranks[:8]))
        return f"ranks {shown}{' …' if len(cause.ranks) > 8 else ''}: "
    if cause.rank is not None:
        return f"rank {cause.rank}: "
    return f"{cause.process.split(' ')[0]}: " if cause.process else ""
