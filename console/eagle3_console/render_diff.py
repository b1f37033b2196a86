"""A diff of two runs as rows, for the terminal and for the screen alike; pure.

A row is text in parts, each with a tone.  What did not change is one row, or all of it on request.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from . import formats
from .analysis.diff import Change, Diff, Section, Side
from .hosttext import clean, crop, fit
from .outcomes import MARKS, Tone

Ink = Literal["", "strong"] | Tone
Part = tuple[str, Ink]
Row = tuple[Part, ...]

#: Cells of the sections' names.
_GUTTER = 13
#: Cells that a key may take before its value no longer stands in line with the others.
_KEY = 34
#: Cells of a value where no width is given, as in a pipe.
_LONG = 200
#: Verdicts, by what they mean for a start.
_VERDICTS: dict[str, Tone] = {"pass": "good", "warn": "look", "block": "bad", "forced": "look"}

#: What a script's keys are called, and the digests of which the first digits are enough.
_SCRIPT = {
    "git_commit": "commit", "git_branch": "branch", "git_dirty": "changed files",
    "git_changes": "changes", "git_problem": "git", "script_sha256": "script",
}  # fmt: skip
_DIGESTS = ("git_commit", "git_changes", "script_sha256")

#: How many of what a section compares, and what it is called alone.
_NOUNS = {
    "profile": ("setting", "settings"),
    "patches": ("patch", "patches"),
    "packages": ("package", "packages"),
    "environment": ("variable", "variables"),
    "preflight": ("check", "checks"),
    "stages": ("stage about as long", "stages about as long"),
    "throughput": ("rate about the same", "rates about the same"),
}


def lines(value: Diff, *, unfolded: bool = False) -> list[tuple[str, str]]:
    """Text and colour of each line, without a limit to their length but for absurd values."""
    told = []
    for number, row in enumerate(rows(value, unfolded=unfolded)):
        text = "".join(part for part, _ in row).rstrip()
        dim = all(ink == "dim" for part, ink in row if part.strip())
        told.append((text, "bold" if number == 0 else "dim" if dim and text else ""))
    return told


def rows(value: Diff, width: int | None = None, *, unfolded: bool = False) -> list[Row]:
    """The headline, the sections that changed, and one row for what did not.

    ``width`` in cells; a change that does not fit stands on two rows, the values below each other.
    """
    told: list[Row] = [_headline(value)]
    for section in value.sections:
        told += _section(section, width, unfolded)
    if value.same:
        told.append((("  nothing differs between the two", "dim"),))
    if not unfolded:
        told += _same(value.sections, width)
    return told


def _headline(value: Diff) -> Row:
    return (*_side(value.before), ("  →  ", "dim"), *_side(value.after))


def _side(value: Side) -> Row:
    symbol, tone = MARKS[value.state]
    took = f" {formats.duration(value.seconds)}" if value.seconds is not None else ""
    name = str(value.number) if value.number else clean(value.run)
    return ((f"run {name} ", "strong"), (f"{symbol} {value.state}", tone), (took, ""))


def _section(value: Section, width: int | None, unfolded: bool) -> list[Row]:
    room = None if width is None else max(20, width - 2 - _GUTTER)
    if value.title == "preflight":
        body = _checks(value, room, unfolded)
    else:
        keys = [c.key for c in (*value.changes, *(value.folded if unfolded else ()))]
        column = min(_KEY, max((len(_name(key)) for key in keys), default=0))
        shown = [c for c in value.changes if c.key != "state"]  # the headline says it
        body = [row for c in shown for row in _change(value.title, c, column, room)]
        if unfolded:
            body += [_kept(value.title, c, column, room) for c in value.folded]
    return _named(value.title, body)


def _named(title: str, body: Sequence[Row]) -> list[Row]:
    """The section's name before its first row, its width of blanks before the others."""
    return [
        ((f"  {title if i == 0 else '':{_GUTTER}}", "strong" if i == 0 else ""), *row)
        for i, row in enumerate(body)
    ]


def _change(title: str, value: Change, column: int, room: int | None) -> list[Row]:
    mark = "+" if value.before is None else "-" if value.after is None else "~"
    before, after = _text(title, value.key, value.before), _text(title, value.key, value.after)
    head: Row = ((f"{mark} ", "now"), (fit(_name(value.key), column), ""), ("   ", ""))
    left = _LONG if room is None else room - sum(len(text) for text, _ in head)
    if mark != "~":
        return [(*head, (crop(before if mark == "-" else after, max(8, left)), _tone(value)))]
    share = _factor(title, value)
    both = len(before) + len(after) + 3 + len(share)
    if both <= left or room is None:
        shown = (crop(before, _LONG), crop(after, _LONG))
        return [
            (*head, (shown[0], "dim"), (" → ", "dim"), (shown[1], _tone(value)), (share, "dim"))
        ]
    before, after = _apart(before, after, room - 9)
    head = (head[0], (crop(_name(value.key), room - 2), ""))
    return [
        head,
        (("    was  ", "dim"), (before, "dim")),
        (("    now  ", "dim"), (after, _tone(value))),
    ]


def _kept(title: str, value: Change, column: int, room: int | None) -> Row:
    head = f"= {fit(_name(value.key), column)}   "
    left = _LONG if room is None else max(8, room - len(head))
    before, after = _text(title, value.key, value.before), _text(title, value.key, value.after)
    text = before if before == after else f"{before} → {after}"
    return ((head + crop(text, left), "dim"),)


def _apart(before: str, after: str, room: int) -> tuple[str, str]:
    """Two long values cut so that what tells them apart is seen."""
    if max(len(before), len(after)) <= room:
        return before, after
    start = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), len(before))
    skip = max(0, min(start - 12, max(len(before), len(after)) + 1 - room))
    lead = "…" if skip else ""
    return crop(lead + before[skip:], room), crop(lead + after[skip:], room)


def _tone(value: Change) -> Ink:
    """Colour only where it means what it means elsewhere: an outcome, a verdict, an error."""
    if value.key == "state" and value.after in MARKS:
        return MARKS[value.after][1]
    if value.key in ("first cause", "error") and value.after is not None:
        return "bad"
    return "dim" if value.after is None else ""


def _factor(title: str, value: Change) -> str:
    """``   33 % shorter``, ``   75 % faster``; of a secret, that it is another one."""
    if value.before == value.after:
        return "   another one"
    if title == "stages" or value.key == "tok/s":
        before, after = value.before, value.after
        if isinstance(before, (int, float)) and isinstance(after, (int, float)) and before > 0:
            part = abs(after / before - 1)
            words = ("longer", "shorter") if title == "stages" else ("faster", "slower")
            return f"   {formats.percent(100 * part)} {words[0 if after > before else 1]}"
    return ""


def _name(key: str) -> str:
    return _SCRIPT.get(key) or clean(key)


def _text(title: str, key: str, value: Any) -> str:
    if value is None:
        return formats.UNKNOWN
    if key in _DIGESTS:
        return clean(str(value))[:12]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and title == "stages":
        return formats.duration(value)
    if number and key.startswith("share."):
        return formats.percent(100 * value)
    if number and key == "tok/s":
        return formats.rate(value)
    if number and key == "bytes":
        return formats.size(value)
    if number and title == "outcome":
        return formats.count(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(clean(str(item)) for item in value)}]"
    return clean(str(value))


# ----------------------------------------------------------------------------- checks


def _checks(value: Section, room: int | None, unfolded: bool) -> list[Row]:
    """Each check with another verdict; those that say the same of other facts are counted."""
    changed: dict[str, dict[str, Change]] = {}
    for change in value.changes:
        check, _, what = change.key.rpartition(".")
        changed.setdefault(check, {})[what] = change
    told: list[Row] = []
    others = 0
    for check, parts in sorted(changed.items(), key=lambda item: "status" not in item[1]):
        if "status" not in parts and not unfolded:
            others += 1
            continue
        told += _check(clean(check), parts.get("status"), parts.get("saw"), room)
    if others:
        noun = "check says" if others == 1 else "checks say"
        told.append(((f"{others} {noun} the same of other facts", "dim"),))
    if unfolded:
        names = [c.key[:-7] for c in value.folded if c.key.endswith(".status")]
        kept = {c.key: c for c in value.folded}
        for name in (n for n in names if n not in changed):
            told.append(((f"= {clean(name)}   {clean(str(kept[f'{name}.status'].after))}", "dim"),))
    return told


def _check(name: str, status: Change | None, saw: Change | None, room: int | None) -> list[Row]:
    if status is None:
        told: list[Row] = [((f"~ {name}   the same verdict of other facts", "dim"),)]
    elif status.before is None:
        told = [(("+ ", "now"), (f"{name}   ", ""), _verdict(status.after))]
    elif status.after is None:
        told = [(("- ", "now"), (f"{name}   ", ""), (clean(str(status.before)), "dim"))]
    else:
        words = (f"{clean(str(status.before))} → ", "dim")
        told = [(("~ ", "now"), (f"{name}   ", ""), words, _verdict(status.after))]  # type: ignore[list-item]
    left = _LONG if room is None else room - 9
    for word, text in (("was", saw and saw.before), ("now", saw and saw.after)):
        if text:
            told.append(((f"    {word}  ", "dim"), (crop(clean(str(text)), left), "dim")))
    return told


def _verdict(status: Any) -> Part:
    return clean(str(status)), _VERDICTS.get(str(status), "dim")


# ----------------------------------------------------------------------------- the same


def _same(sections: Sequence[Section], width: int | None) -> list[Row]:
    """``184 packages, driver 580.95, 31 settings``: one row where it fits."""
    words = [w for w in map(_unchanged, sections) if w]
    if not words:
        return []
    text = ", ".join(words)
    cut = [text] if width is None else textwrap.wrap(text, max(20, width - 2 - _GUTTER))
    return _named("the same", [((line, "dim"),) for line in cut])


def _unchanged(value: Section) -> str:
    kept = len(value.folded)
    if value.title == "preflight":  # two keys for each: its verdict and what it saw
        moved = {c.key.rpartition(".")[0] for c in value.changes}
        names = {c.key.rpartition(".")[0] for c in value.folded}
        kept = len(names - moved)
    if not kept:
        return ""
    known = {c.key: c.after for c in value.folded}
    for key, name in (("driver", "driver"), ("host", "host"), ("git_commit", "script at")):
        if value.title in ("driver", "host", "script") and isinstance(known.get(key), str):
            return f"{name} {crop(clean(known[key]), 12 if key == 'git_commit' else 30)}"
    if value.title in _NOUNS:
        return f"{kept} {_NOUNS[value.title][kept != 1]}"
    return ""  # one branch, or no sample skipped in both, is not worth a word
