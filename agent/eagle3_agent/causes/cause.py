"""What happened first: the causal exception out of every rank's output, what followed folded; pure.

When an engine of many processes fails, one exception is the cause and dozens follow from it: the
parent that lost a worker, the other ranks whose collective broke off, pipes, cancelled calls.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eagle3_agent.protocol.values import Cause, ErrorInfo

from . import crashes, loglines, telling
from .burst import SURVIVED, Errors
from .consequences import follows, kind, late, says
from .found import Found, Raised
from .loglines import Line, rank_of
from .tracebacks import Tracebacks

_LINE_MOST = 500
#: Lines after which an open traceback of a process that fell silent is complete.
_IDLE = 1000
#: Lines kept as they came, for what a process said before its error.
_REMEMBERED = 400

#: Bytes of a log that are looked at: its beginning and, mostly, its end.
_HEAD = 8 << 20
_TAIL = 56 << 20
_PIECE = 1 << 20
#: Bytes of one line that are waited for.
_LONGEST = 1 << 20


class CauseFinder:
    """Feed it a log's bytes in order, and ask at any time."""

    def __init__(self) -> None:
        self.lines = 0
        """Whole lines seen."""
        self._tracebacks = Tracebacks()
        self._errors = Errors()
        self._warned: list[tuple[int, str]] = []
        self._rest = bytearray()
        self._quiet: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._owed: tuple[str, int] = ("", 0)

    def add(self, data: bytes) -> None:
        """Look at the next bytes; a line that is not finished waits for the next call."""
        end = data.rfind(b"\n") + 1
        if end:
            self._lines(bytes(self._rest) + data[:end])
            self._rest.clear()
        self._rest += data[end:]
        if len(self._rest) >= _LONGEST:
            # of a bar that is drawn anew and anew its end is shown, of other lines their beginning
            kept = slice(-(1 << 16), None) if b"\r" in self._rest else slice(1 << 16)
            self._rest = self._rest[kept]

    def _lines(self, data: bytes) -> None:
        """Whole lines; those that can tell of no error are only counted and remembered."""
        places = iter(crashes.signs(data))
        sign = next(places, len(data))
        at = 0
        while at < len(data):
            if not self._attentive:
                while sign < at:
                    sign = next(places, len(data))
                calm = data.rfind(b"\n", at, sign) + 1
                if calm > at:
                    self._pass_over(data, at, calm)
                    at = calm
                    continue
            end = data.find(b"\n", at)
            self._line(data[at:end])
            at = end + 1

    @property
    def _attentive(self) -> bool:
        return self._tracebacks.busy or self._errors.watching(self.lines)

    def _pass_over(self, data: bytes, start: int, end: int) -> None:
        self.lines += data.count(b"\n", start, end)
        self._quiet.extend(_last_lines(data, start, end))

    def _line(self, raw: bytes) -> None:
        number = self.lines
        self.lines += 1
        self._remember(self._tracebacks)
        self._quiet.clear()
        line = self._paid(loglines.parse(loglines.decode(raw)), number)
        if (warned := crashes.nccl(line)) is not None and len(self._warned) < 64:
            self._warned.append((number, warned))
        self._tracebacks.add(line, number)
        if number % 256 == 0:
            self._tracebacks.close(number, _IDLE)
        found = self._tracebacks.take()
        self._errors.add(found)
        if not found:
            self._errors.saw(line)

    def _remember(self, tracebacks: Tracebacks) -> None:
        owed = ""
        for said in self._quiet:
            line = loglines.parse(loglines.decode(said))
            if owed and not line.process:
                line = replace(line, process=owed)
            owed = line.owed
            tracebacks.remember(line)

    def _paid(self, line: Line, number: int) -> Line:
        """Two prefixes on a line: the first one's text stands on the next, without a prefix."""
        owed, until = self._owed
        if line.owed:
            self._owed = (line.owed, number + 1)
        elif owed and number <= until and not line.process:
            self._owed = ("", 0)
            return replace(line, process=owed)
        return line

    def cause(self, told: ErrorInfo | None = None) -> Cause | None:
        """What happened first; ``told`` is what the run's own failure event says.

        None when neither knows of any error.
        """
        errors, words = self._ended()
        burst, survived = errors.burst(), errors.survived()
        if told is not None and (
            one := _same_as_told(telling.raised(told), burst, survived, told.rank)
        ):
            return self._of(one, burst, told)
        speaks = told is not None and not follows(telling.raised(told))
        if told is not None and speaks and self.lines - errors.end > SURVIVED:
            return _by_told(told, [], words)  # all that the log shows was survived
        primary = [f for f in burst if not follows(f.first)]
        if causes := [f for f in primary if not late(f.first)]:
            return self._of(causes[0], burst, told)
        if primary and (told is None or not speaks or late(telling.raised(told))):
            return self._of(primary[0], burst, told)
        if told is not None and speaks:
            return _by_told(told, burst, words)
        if burst:
            died = [replace(f, before=words.last(f.process)) for f in burst if _died(f)]
            return self._of((died or burst)[0], burst, told, only_followed=True)
        if told is not None:
            return _by_told(told, burst, words)
        recent = [f for f in survived if self.lines - f.end <= SURVIVED]
        return self._of(recent[-1], recent, told) if recent else None

    def _ended(self) -> tuple[Errors, Tracebacks]:
        """All errors, as if the log ended here, and what was said last; the reading goes on."""
        tracebacks, errors = self._tracebacks.copy(), self._errors.copy()
        self._remember(tracebacks)
        if self._rest:
            tracebacks.add(loglines.parse(loglines.decode(bytes(self._rest))), self.lines)
        tracebacks.close(self.lines + 1)
        errors.add(tracebacks.take())
        return errors, tracebacks

    def _of(
        self,
        chosen: Found,
        burst: Sequence[Found],
        told: ErrorInfo | None,
        *,
        only_followed: bool = False,
    ) -> Cause:
        raised = chosen.first
        same = [f for f in burst if kind(f.first) == kind(raised)]
        ranks = sorted({r for f in same if (r := rank_of(f.process)) is not None})
        rank = rank_of(chosen.process)
        if rank is None and told is not None and says(chosen, telling.raised(told)):
            rank = told.rank
        spoken = tuple(text for at, text in self._warned if at <= chosen.end)[-3:]
        return telling.made(
            raised,
            rank,
            process=chosen.process,
            ranks=tuple(ranks),
            line=chosen.line,
            before=tuple(said[:_LINE_MOST] for said in chosen.before),
            hints=spoken if "nccl" in raised.message.lower() else (),
            followed=telling.fold([f for f in burst if kind(f.first) != kind(raised)]),
            only_followed=only_followed,
        )


def _died(found: Found) -> bool:
    return found.first.type == "Died"


def _by_told(told: ErrorInfo, burst: Sequence[Found], words: Tracebacks) -> Cause:
    """What the run says of its end; of a rank that died without a word, what it said last."""
    cause = telling.from_told(told, burst)
    if told.rank is None:
        return cause
    seen = [f.line for f in burst if _died(f) and rank_of(f.process) == told.rank]
    before = tuple(said[:_LINE_MOST] for said in words.last(f"rank{told.rank}"))
    return replace(cause, before=before, line=seen[0] if seen else None)


def _last_lines(data: bytes, start: int, end: int) -> list[bytes]:
    """The beginnings of the last lines of a stretch of whole lines."""
    cut = max(start, end - _REMEMBERED * 512)
    lines = data[cut:end].split(b"\n")[-_REMEMBERED - 1 : -1]
    return [raw[-1024:] if b"\r" in raw else raw[:1024] for raw in lines]


def _same_as_told(
    told: Raised, burst: Sequence[Found], survived: Sequence[Found], rank: int | None
) -> Found | None:
    """The exception of the log that the run itself names as its end.

    None when it names a consequence, or when its own process may only have passed on what went
    before in another one.
    """
    if follows(told) or late(told):
        return None
    fits = [f for some in (burst, survived[::-1]) for f in some if says(f, told)]
    fits = [f for f in fits if not follows(f.first)]
    if not fits:
        return None
    own = fits[0]
    if rank is not None or (own.process and not own.process.startswith("MainProcess ")):
        return own
    before = [f for f in burst if f.line < own.line and not follows(f.first) and not late(f.first)]
    return None if any(f.process for f in before) else own


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
