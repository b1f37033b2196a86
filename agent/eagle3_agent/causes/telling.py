"""How a failure is told: its sentence, what it means, and what followed from it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eagle3_agent.protocol.values import Cause, ErrorInfo, Followed, Where

from .consequences import headline, kind
from .found import Found, Frame, Raised
from .known import recognise

_MESSAGE_MOST = 20_000


def fold(found: Sequence[Found]) -> tuple[Followed, ...]:
    """One entry for each kind, in the order of the log."""
    kinds: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        kinds.setdefault((one.first.type, kind(one.first)[1]), []).append(one)
    folded = []
    for same in kinds.values():
        raised = same[0].first
        text = ": ".join(p for p in (_short(raised.type), headline(raised.message)) if p)
        names = dict.fromkeys(f.process.split(" ")[0] for f in same if f.process)
        folded.append(Followed(text[:300], tuple(names)[:16], same[0].line))
    return tuple(sorted(folded, key=lambda f: f.line))


def raised(told: ErrorInfo) -> Raised:
    where = told.where
    frames = (Frame(where.file, where.line, where.function, where.source),) if where else ()
    return Raised(told.type, told.message, frames)


def from_told(told: ErrorInfo, burst: Sequence[Found]) -> Cause:
    return made(raised(told), told.rank, followed=fold(burst))


def made(raised: Raised, rank: int | None, **more: Any) -> Cause:
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
    first = headline(cause.message)
    if first:
        what += f": {first[:500]}"
    elif cause.where is not None:
        spot = cause.where.source or cause.where.function or cause.where.file
        what += f" without a message, raised by `{spot}`"
    return f"{_who(cause)}{what or 'an error without a name'}"


def _short(kind: str) -> str:
    return kind.rsplit(".", 1)[-1]


def _who(cause: Cause) -> str:
    if len(cause.ranks) > 1:
        shown = ", ".join(map(str, cause.ranks[:8]))
        return f"ranks {shown}{' …' if len(cause.ranks) > 8 else ''}: "
    if cause.rank is not None:
        return f"rank {cause.rank}: "
    return f"{cause.process.split(' ')[0]}: " if cause.process else ""
