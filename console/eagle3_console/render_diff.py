"""A diff of two runs as lines for the terminal; pure."""

from __future__ import annotations

from typing import Any

from . import formats
from .analysis.diff import Change, Diff, Section, Side


def lines(value: Diff) -> list[tuple[str, str]]:
    """Text and colour of each line; a section without a change is one line."""
    told = [(f"run {_side(value.before)}  →  run {_side(value.after)}", "bold")]
    for section in value.sections:
        told += _section(section)
    return told


def _side(value: Side) -> str:
    took = f", {formats.duration(value.seconds)}" if value.seconds is not None else ""
    return f"{value.run} ({value.state}{took})"


def _section(value: Section) -> list[tuple[str, str]]:
    if not value.changes:
        if not value.compared:
            return [(f"  {value.title:12} nothing to compare", "dim")]
        return [(f"  {value.title:12} same ({value.compared} compared)", "dim")]
    return [
        (f"  {value.title if i == 0 else '':12} {_change(change)}", "")
        for i, change in enumerate(value.changes)
    ]


def _change(value: Change) -> str:
    if value.before is None:
        return f"+ {value.key} = {_text(value.after)}"
    if value.after is None:
        return f"- {value.key} = {_text(value.before)}"
    return f"~ {value.key}   {_text(value.before)} → {_text(value.after)}"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:199] + "…"
