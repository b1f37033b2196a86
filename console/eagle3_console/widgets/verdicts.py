"""A preflight's verdicts: what blocks first and in full, what passed folded to a line."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, replace

from textual.content import Content
from textual.widget import Widget

from eagle3_agent.protocol.values import Report, Status, Verdict
from eagle3_console import formats
from eagle3_console.checks import Deed
from eagle3_console.hosttext import clean, clean_lines, fit, folded
from eagle3_console.store import State
from eagle3_console.verdicts import Offer, counts, folded_words, having, offers

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
#: Cells of a title at most, where it stands before what was seen.
_LABEL = 36

Key = tuple[str, str]
"""An offer: its check's id and its own."""


@dataclass(frozen=True)
class Look:
    """How a report is drawn."""

    width: int
    unfolded: bool = False
    """With every check."""
    whys: bool = False
    """With why each warning matters; a block always says it."""
    acts: bool = False
    """Actions are listed, to be chosen."""
    chosen: Key | None = None
    read_only: bool = False


@dataclass
class Drawn:
    """The rows, and where the actions stand among them."""

    rows: list[Content] = field(default_factory=list)
    places: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """First row of an action, and its rows."""


class VerdictsPanel(Panel):
    """Draws the newest report, what was done about it, and the actions that it offers."""

    def __init__(self) -> None:
        super().__init__()
        self.unfolded = False
        self.chosen: Key | None = None
        self.places: dict[Key, tuple[int, int]] = {}

    def lines(self, state: State, width: int) -> list[Content]:
        report = state.checks.report
        if report is None:
            return []
        busy = state.checks.since is not None
        chosen = None if busy else self.chosen
        look = Look(width, self.unfolded, True, True, chosen, state.read_only)
        done = deed_lines(state.checks.deeds, width)
        drawn = draw(report, look)
        if not self.unfolded and len(done) + len(drawn.rows) > self._room():
            drawn = draw(report, replace(look, whys=False))
        self.places = {k: (row + len(done), n) for k, (row, n) in drawn.places.items()}
        return done + drawn.rows

    def _room(self) -> int:
        """Rows that can be seen without scrolling."""
        parent = self.parent
        return parent.size.height if isinstance(parent, Widget) else 0

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self.refresh(layout=True)

    def choose(self, key: Key | None) -> None:
        if key != self.chosen:
            self.chosen = key
            self.refresh()


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
    if any(v.status == "skip" for v in report.verdicts):
        return ink.row(("✓ READY", f"bold {ink.GOOD}"), (f" · no check of {total} blocks", ink.DIM))
    return ink.row(("✓ READY", f"bold {ink.GOOD}"), (f" · all {total} checks pass", ink.DIM))


def tally(report: Report) -> list[Content]:
    """How many block, warn, are not told and pass."""
    items = []
    for status, words in counts(report):
        symbol, colour = MARK[status]
        items.append(ink.row((f"{symbol} ", colour), words))
    return items


def report_lines(report: Report, width: int, unfolded: bool = False) -> list[Content]:
    """Everything below the headline, to be read only."""
    return draw(report, Look(width, unfolded, unfolded)).rows


def draw(report: Report, look: Look) -> Drawn:
    """Everything below the headline, and where its actions are."""
    drawn = Drawn()
    longest = max((len(clean(v.title)) for v in report.verdicts), default=0)
    label = max(14, min(longest, _LABEL, look.width // 2))
    numbers = {offer.key: i for i, offer in enumerate(offers(report), 1)} if look.acts else {}
    for verdict in having(report, "block", "warn"):
        drawn.rows += _open(verdict, look, label)
        _add_actions(drawn, verdict, look, label, numbers)
        drawn.rows.append(Content(""))
    quiet = having(report, "skip", "pass")
    for verdict in quiet:
        if look.unfolded:
            drawn.rows += _quiet(verdict, look.width, label)
        if look.unfolded or verdict.actions:
            _add_actions(drawn, verdict, look, label, numbers)
    if quiet and not look.unfolded:
        told = " · ".join(folded_words(report))
        drawn.rows.append(ink.row(("✓ ", ink.GOOD), told, ("   space shows them", ink.DIM)))
    return drawn


def _open(verdict: Verdict, look: Look, label: int) -> list[Content]:
    """Saw, why and the way out of one check."""
    symbol, colour = MARK[verdict.status]
    with_why = verdict.status == "block" or look.whys
    if look.width < _NARROW:
        title = _wrap(f"{symbol} {clean(verdict.title)}", look.width)
        named = [Content.styled(line, f"bold {colour}") for line in title]
        return [*named, *_said(verdict, look.width, 4, with_why)]
    title_cell = fit(clean(verdict.title), label)
    head = ink.row((f"{symbol} {title_cell}  ", f"bold {colour}"))
    said = _said(verdict, look.width, label + 4, with_why)
    if not said:
        return [head]
    return [ink.row(head, said[0][label + 4 :]), *said[1:]]


def _said(verdict: Verdict, width: int, indent: int, with_why: bool) -> list[Content]:
    """What was seen, why it matters and what to do, below each other."""
    room, space = width - indent, " " * indent
    rows = [ink.row(space, line) for line in _wrap(verdict.saw, room)]
    if with_why:
        rows += [ink.row(space, (line, ink.DIM)) for line in _wrap(verdict.why, room)]
    for i, line in enumerate(_wrap(verdict.todo, room - 2)):
        rows.append(ink.row(space, ("▸ " if i == 0 else "  ", ink.NOW), (line, ink.STRONG)))
    return rows


def _add_actions(
    drawn: Drawn, verdict: Verdict, look: Look, label: int, numbers: dict[Key, int]
) -> None:
    """The actions under their check, each with the key that opens it."""
    indent = 4 if look.width < _NARROW else label + 4
    space = " " * indent
    for action in verdict.actions if look.acts else ():
        key = Offer(verdict, action).key
        number = numbers[key]
        name = str(number) if number < 10 else " "
        chosen = key == look.chosen and not look.read_only
        style = f"bold $background on {ink.NOW}" if chosen else ""
        first = len(drawn.rows)
        for i, line in enumerate(_wrap(action.title, look.width - indent - 5)):
            mark = (f"{'❯' if chosen else ' '} {name} " if i == 0 else "    ", f"bold {ink.NOW}")
            if look.read_only:
                mark = ("  · " if i == 0 else "    ", ink.DIM)
            text = (f" {line} ", ink.DIM if look.read_only else style)
            drawn.rows.append(ink.row(space, mark, text))
        drawn.places[key] = (first, len(drawn.rows) - first)
    if look.acts and look.read_only and verdict.actions:
        for line in _wrap("not from here: this console was opened with --read-only", 60):
            drawn.rows.append(ink.row(space, ("    " + line, ink.DIM)))


def deed_lines(deeds: tuple[Deed, ...], width: int) -> list[Content]:
    """What was done since the check before, newest first."""
    rows: list[Content] = []
    for deed in reversed(deeds):
        symbol, colour, word = _became(deed)
        for i, line in enumerate(_wrap(f"{word}: {deed.action.title}", width - 2)):
            rows.append(
                ink.row((f"{symbol} " if i == 0 else "  ", colour), (line, f"bold {colour}"))
            )
        said = list(deed.done)
        if deed.now:
            said.append(f"{deed.title} now: {deed.now}")
        if deed.problem is not None:
            said += [deed.problem.title, deed.problem.happened, deed.problem.todo]
        for text in filter(None, said):
            rows += [ink.row("    ", (line, ink.DIM)) for line in _wrap(text, width - 4)]
    return [*rows, Content("")] if rows else []


def _became(deed: Deed) -> tuple[str, str, str]:
    if deed.problem is not None:
        return "✗", ink.BAD, "Not done"
    if deed.helped:
        return "✓", ink.GOOD, "It helped"
    return "!", ink.LOOK, "It did not help"


def _quiet(verdict: Verdict, width: int, label: int) -> list[Content]:
    """A check that stands in nobody's way: what it saw beside its title, and how long it took."""
    symbol, colour = MARK[verdict.status]
    took = f"{verdict.seconds:.1f} s" if verdict.seconds >= 0.05 else ""
    title = fit(clean(verdict.title), label)
    said = [Content.styled(line, ink.DIM) for line in _wrap(verdict.saw, width - label - 4 - 8)]
    head = ink.row((f"{symbol} ", colour), title, "  ", *said[:1])
    rows = [ink.ends(head, Content.styled(took, ink.DIM), width)]
    return rows + [ink.row(" " * (label + 4), line) for line in said[1:]]


def _wrap(text: str, width: int) -> list[str]:
    rows: list[str] = []
    for line in clean_lines(text, limit=12):
        wrapped = textwrap.wrap(line[:4000], max(16, width), break_on_hyphens=False)
        rows += [part for row in wrapped for part in folded(row, max(16, width))] or [""]
    return rows


def summary(report: Report, now: float) -> Content:
    """How long it took and when, for the right end of the headline."""
    words = f"{report.seconds:.1f} s · {formats.moment(report.at, now)}"
    return Content.styled(words, ink.DIM)
