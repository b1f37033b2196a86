"""What happened first: the causal exception out of every rank's output, what followed folded; pure.

When an engine of many processes fails, one exception is the cause and dozens follow from it: the
parent that lost a worker, the other ranks whose collective broke off, pipes, cancelled calls.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import Cause, ErrorInfo, Followed, Where

from . import loglines
from .known import recognise
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
_MESSAGE_MOST = 20_000
_LINE_MOST = 500

#: Bytes of a log that are looked at: its beginning and, mostly, its end.
_HEAD = 8 << 20
_TAIL = 56 << 20
_PIECE = 1 << 20

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
            return _from_told(told, burst)
        if burst:
            return self._of(burst[0], burst, told, only_followed=True)
        return _from_told(told, burst) if told is not None else None

    def _of(
        self,
        chosen: Found,
        burst: Sequence[Found],
        told: ErrorInfo | None,
        *,
        only_followed: bool = False,
    ) -> Cause:
        raised = chosen.first
        same = [f for f in burst if _alike(f.first, raised)]
        ranks = sorted({r for f in same if (r := rank_of(f.process)) is not None})
        rank = rank_of(chosen.process)
        if rank is None and told is not None and told.type.rsplit(".", 1)[-1] == raised.short_type:
            rank = told.rank
        spoken = tuple(text for at, text in self._warned if at <= chosen.end)[-3:]
        return _made(
            raised,
            rank,
            process=chosen.process,
            ranks=tuple(ranks),
            line=chosen.line,
            before=tuple(said[:_LINE_MOST] for said in chosen.before),
            hints=spoken if "nccl" in raised.message.lower() else (),
            followed=_fold([f for f in burst if f not in same]),
            only_followed=only_followed,
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


def _fold(found: Sequence[Found]) -> tuple[Followed, ...]:
    """One entry for each kind, in the order of the log."""
    kinds: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        kinds.setdefault((one.first.type, _without_numbers(one.first)), []).append(one)
    folded = []
    for same in kinds.values():
        raised = same[0].first
        text = ": ".join(p for p in (_short(raised.type), _headline(raised.message)) if p)
        names = dict.fromkeys(f.process.split(" ")[0] for f in same if f.process)
        folded.append(Followed(text[:300], tuple(names)[:16], same[0].line))
    return tuple(sorted(folded, key=lambda f: f.line))


def _raised(told: ErrorInfo) -> Raised:
    where = told.where
    frames = (Frame(where.file, where.line, where.function, where.source),) if where else ()
    return Raised(told.type, told.message, frames)


def _from_told(told: ErrorInfo, burst: Sequence[Found]) -> Cause:
    return _made(_raised(told), told.rank, followed=_fold(burst))


def _made(raised: Raised, rank: int | None, **more: Any) -> Cause:
    known = recognise(raised)
    where = raised.where
    cause = Cause(
        sentence="",
        type=raised.type,
        message=raised.message[:_MESSAGE_MOST],
        rank=rank,
        where=Where(where.file, where.line, where.function, where.source) if where else None,
        kind=known.id if known else "",
        means=known.means if known else "",
        todo=known.todo if known else "",
        **more,
    )
    return replace(cause, sentence=_sentence(cause))


def _sentence(cause: Cause) -> str:
    what = _short(cause.type)
    first = _headline(cause.message)
    if first:
        what += f": {first[:500]}"
    elif cause.where is not None:
        spot = cause.where.source or cause.where.function or cause.where.file
        what += f" without a message, raised by `{spot}`"
    return f"{_who(cause)}{what or 'an error without a name'}"


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


def of_log(path: Path, told: ErrorInfo | None = None) -> Cause | None:
    """What happened first in a run, by its log and by what its failure event says.

    Of a log of more than 64 MiB the middle is left out, and lines are not numbered.  Without a log
    ``told`` alone speaks; None when that is None too.
    """
    finder = CauseFinder()
    cut = False
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            cut = size > _HEAD + _TAIL
            left = _HEAD if cut else size
            while left > 0 and (data := file.read(min(_PIECE, left))):
                finder.add(data)
                left -= len(data)
            if cut:
                file.seek(size - _TAIL)
                file.readline(_PIECE)
                while data := file.read(_PIECE):
                    finder.add(data)
    except OSError:
        pass  # a run that was never started has no log
    found = finder.cause(told)
    return replace(found, line=None) if found is not None and cut else found
