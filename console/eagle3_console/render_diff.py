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
        compared = f"{value.compared} compared"
        if value.title == "preflight":  # two keys for each: its verdict and what it saw
            compared = f"{value.compared // 2} checks"
        return [(f"  {value.title:12} same ({compared})", "dim")]
    told = _checks(value) if value.title == "preflight" else [_change(c) for c in value.changes]
    return [(f"  {value.title if i == 0 else '':12} {text}", "") for i, text in enumerate(told)]


def _checks(value: Section) -> list[str]:
    """Each check whose verdict or facts changed, those with another verdict first."""
    changed: dict[str, dict[str, Change]] = {}
    for change in value.changes:
        check, _, what = change.key.rpartition(".")
        changed.setdefault(check, {})[what] = change
    told: list[str] = []
    for check, parts in sorted(changed.items(), key=lambda item: "status" not in item[1]):
        told += _check(check, parts.get("status"), parts.get("saw"))
    same = value.compared // 2 - len(changed)
    if same > 0:
        told.append(f"{same} checks say the same")
    return told


def _check(name: str, status: Change | None, saw: Change | None) -> list[str]:
    if status is None:
        told = [f"~ {name}   the same verdict of other facts"]
    elif status.before is None:
        told = [f"+ {name}   {_text(status.after)}"]
    elif status.after is None:
        told = [f"- {name}   {_text(status.before)}"]
    else:
        told = [f"~ {name}   {_text(status.before)} → {_text(status.after)}"]
    for word, text in (("was", saw and saw.before), ("now", saw and saw.after)):
        told += [f"    {word}  {_text(text)}"] if text else []
    return told


def _change(value: Change) -> str:
    if value.before is None:
        return f"+ {value.key} = {_text(value.after)}"
    if value.after is None:
        return f"- {value.key} = {_text(value.before)}"
    return f"~ {value.key}   {_text(value.before)} → {_text(value.after)}"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:199] + "…"
