"""A preflight's verdicts: what blocks first and in full, what passed folded to a line."""

from __future__ import annotations

import textwrap

from textual.content import Content

from eagle3_agent.protocol.values import Report, Status, Verdict
from eagle3_console import formats
from eagle3_console.hosttext import clean, clean_lines, first_line, fit
from eagle3_console.store import State

from . import ink
from .panel import Panel

MARK: dict[Status, tuple[str, str]] = {
    "block": ("✗", ink.BAD),
    "warn": ("!", ink.LOOK),
    "pass": ("✓", ink.GOOD),
    "skip": ("·", ink.DIM),
}
#: Below this width what a check says stands under its title, not beside it.
_NARROW = 100
_ORDER: tuple[Status, ...] = ("block", "warn", "skip", "pass")


class VerdictsPanel(Panel):
    """Draws ``state.report``, or the one it was given."""

    def __init__(self, report: Report | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.report = report
        self.unfolded = False

    def lines(self, state: State, width: int) -> list[Content]:
        report = self.report or state.report
        if report is None:
            return []
        return report_lines(report, width, self.unfolded)

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self.refresh(layout=True)


def headline(report: Report) -> Content:
    """``BLOCKED by 2 of 31 checks``, or that nothing stands in the way."""
    blocking, total = len(report.blocking), len(report.verdicts)
    if blocking:
        words = f"✗ BLOCKED by {blocking} of {total} checks"
        return Content.styled(words, f"bold {ink.BAD}")
    warnings = sum(v.status == "warn" for v in report.verdicts)
    if warnings:
        look = f"{warnings} to look at" if warnings > 1 else "1 to look at"
        return ink.row(("✓ READY", f"bold {ink.GOOD}"), (f" · ! {look}", ink.LOOK))
    return ink.row(("✓ READY", f"bold {ink.GOOD}"), (f" · all {total} checks pass", ink.DIM))


def report_lines(report: Report, width: int, unfolded: bool = False) -> list[Content]:
    """Everything below the headline."""
    rows: list[Content] = []
    longest = max((len(clean(v.title)) for v in report.verdicts), default=0)
    label = max(14, min(longest, 32, width // 3))
    ordered = sorted(report.verdicts, key=lambda v: _ORDER.index(v.status))
    folded = [v for v in ordered if v.status in ("pass", "skip")]
    for verdict in ordered:
        if verdict.status in ("block", "warn"):
            rows += [*_open(verdict, width, label), Content("")]
    if unfolded:
        rows += [_folded(v, width, label) for v in folded]
    elif folded:
        more = " more" if len(folded) < len(report.verdicts) else ""
        rows.append(
            ink.row(("✓ ", ink.GOOD), f"{len(folded)}{more}", ("   space shows them", ink.DIM))
        )
    return rows


def _open(verdict: Verdict, width: int, label: int) -> list[Content]:
    """Saw, why and the way out of one check."""
    symbol, colour = MARK[verdict.status]
    if width < _NARROW:
        named = ink.cut(ink.row((f"{symbol} {clean(verdict.title)}", f"bold {colour}")), width)
        return [named, *_said(verdict, width, 4)]
    title = fit(clean(verdict.title), label)
    room = width - label - 4
    rows = []
    for i, line in enumerate(_wrap(verdict.saw, room)):
        head = (f"{symbol} {title}  ", f"bold {colour}") if i == 0 else " " * (label + 4)
        rows.append(ink.row(head, line))
    if not rows:
        rows.append(ink.row((f"{symbol} {title}", f"bold {colour}")))
    return rows + _said(verdict, width, label + 4)[len(_wrap(verdict.saw, room)) :]


def _said(verdict: Verdict, width: int, indent: int) -> list[Content]:
    """What was seen, why it matters and what to do, below each other."""
    room, space = width - indent, " " * indent
    rows = [ink.row(space, line) for line in _wrap(verdict.saw, room)]
    rows += [ink.row(space, (line, ink.DIM)) for line in _wrap(verdict.why, room)]
    for i, line in enumerate(_wrap(verdict.todo, room - 2)):
        rows.append(ink.row(space, ("▸ " if i == 0 else "  ", ink.NOW), (line, ink.STRONG)))
    return rows


def _folded(verdict: Verdict, width: int, label: int) -> Content:
    symbol, colour = MARK[verdict.status]
    took = f"{verdict.seconds:.1f} s" if verdict.seconds >= 0.05 else ""
    title = fit(clean(verdict.title), label)
    left = ink.row((f"{symbol} ", colour), title, "  ", (first_line(verdict.saw), ink.DIM))
    return ink.ends(ink.cut(left, width - 8), Content.styled(took, ink.DIM), width)


def _wrap(text: str, width: int) -> list[str]:
    rows: list[str] = []
    for line in clean_lines(text, limit=12):
        wrapped = textwrap.wrap(line[:4000], max(16, width), break_on_hyphens=False)
        rows += wrapped or [""]
    return rows


def summary(report: Report, now: float) -> Content:
    """How long it took and when, for the right end of the headline."""
    words = f"{report.seconds:.1f} s · {formats.moment(report.at, now)}"
    return Content.styled(words, ink.DIM)
