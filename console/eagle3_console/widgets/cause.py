"""What happened first, as rows: the sentence, the line, what it means, what followed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.content import Content

from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.values import Cause, Followed, RunDetail
from eagle3_console.hosttext import clean, crop, folded

from . import ink


def known(standing: Standing | None, detail: RunDetail | None) -> Cause | None:
    """What is at hand of a run's cause: by its events, else as the agent read its log."""
    told = standing.cause if standing is not None else None
    return told or (detail.cause if detail is not None else None)


def headline(cause: Cause) -> str:
    """The sentence, clean."""
    return clean(cause.sentence)


def spot(cause: Cause) -> str:
    """``gpu_worker.py:355 in determine_available_memory · log line 212``"""
    parts = []
    if cause.where is not None:
        name = clean(cause.where.file).rsplit("/", 1)[-1]
        function = f" in {clean(cause.where.function)}" if cause.where.function else ""
        parts.append(f"{name}:{cause.where.line}{function}")
    if cause.line is not None:
        parts.append(f"log line {cause.line + 1}")
    return " · ".join(parts)


def cause_lines(cause: Cause, width: int) -> list[Content]:
    """What happened first, the line that raised it, and the way out where one is known."""
    bold = f"bold {ink.BAD}"
    rows = [ink.row(("✗ ", bold), (crop(headline(cause), width - 2), bold))]
    source = clean(cause.where.source.strip()) if cause.where is not None else ""
    place = spot(cause)
    if place:
        rows.append(ink.row("  ", (crop(place, width - 2), ink.DIM)))
    if cause.todo:
        rows.append(ink.row(("▸ ", ink.NOW), crop(clean(cause.todo), width - 2)))
    elif source:
        rows.append(ink.row("    ", crop(source, width - 4)))
    return rows


def cause_rows(cause: Cause, width: int) -> list[Content]:
    """Everything about the cause that fits on a page; the traceback is not among it."""
    rows = [
        ink.row("  ", (line, f"bold {ink.BAD}"))
        for line in folded("✗ " + headline(cause), width - 4)
    ]
    if cause.only_followed:
        rows.append(ink.row("    ", ("only what followed was written: see below it", ink.LOOK)))
    rows += _plain(cause.message.splitlines()[1:12], width, "")
    if spot(cause):
        rows.append(ink.row("    ", (spot(cause), ink.DIM)))
    if cause.where is not None and cause.where.source:
        rows.append(ink.row("    ", ("▶ ", ink.NOW), clean(cause.where.source.strip())))
    for hint in cause.hints:
        rows.append(ink.row("    ", ("NCCL says: ", ink.DIM), clean(hint)))
    if cause.means:
        rows.append(Content(""))
        rows += [ink.row("    ", line) for line in _wrapped(cause.means, width - 6)]
        for number, line in enumerate(_wrapped(cause.todo, width - 8)):
            rows.append(ink.row("    ", ("  " if number else "▸ ", ink.NOW), (line, ink.STRONG)))
    if cause.before:
        rows += [Content(""), Content.styled("  The same process, before it", ink.DIM)]
        rows += _plain(cause.before, width, ink.DIM)
    if cause.followed:
        rows += [
            Content(""),
            Content.styled(f"  Followed from it ({_many(cause.followed)})", ink.DIM),
        ]
        rows += [_followed(one, width) for one in cause.followed[:12]]
        rest = len(cause.followed) - 12
        rows += [Content.styled(f"    and {rest} kinds more", ink.DIM)] if rest > 0 else []
    return [ink.cut(row, width) for row in rows]


def _followed(one: Followed, width: int) -> Content:
    who = ", ".join(clean(p) for p in one.processes[:4])
    who += " …" if len(one.processes) > 4 else ""
    text = crop(clean(one.text), max(16, width - 8 - len(who)))
    return ink.row("    ", (text, ink.DIM), f"  {who}" if who else "")


def _many(followed: Sequence[Followed]) -> str:
    return "1 kind of error" if len(followed) == 1 else f"{len(followed)} kinds of errors"


def _plain(lines: Sequence[str], width: int, style: str) -> list[Content]:
    return [ink.row("    ", (crop(clean(line), width - 5), style)) for line in lines]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clean(text), max(16, width), break_on_hyphens=False)
