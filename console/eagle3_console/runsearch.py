"""Which runs of a history are shown, and in which order; pure.

A filter is words that must all be there.  A plain word is looked for in everything that a line
says; ``state:failed`` and the like look at one column; ``>`` and ``<`` compare figures:
``tok/s>9000``, ``took>1h30m``, ``samples<100``, ``age<2d``; ``!`` or ``-`` before a word means not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_agent.protocol.values import RunSummary

Column = Literal[
    "run", "state", "model", "profile", "engine", "took", "samples", "tok/s", "started"
]

COLUMNS: tuple[Column, ...] = (
    "run", "state", "model", "profile", "engine", "took", "samples", "tok/s", "started",
)  # fmt: skip

_TERM = re.compile(
    r"(?P<not>[!-]?)(?:(?P<key>[A-Za-z/]+)(?P<how>:|[<>]=?|=))?(?P<value>.*)", re.DOTALL
)
_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?$"
)
_SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9}

_TEXTS: dict[str, Callable[[RunSummary], str]] = {
    "run": lambda r: f"{r.number} {r.run}",
    "state": lambda r: r.state,
    "model": lambda r: r.model,
    "profile": lambda r: r.profile,
    "engine": lambda r: r.engine,
    "stage": lambda r: r.stage,
    "output": lambda r: r.output_dir,
    "error": lambda r: f"{r.cause} {r.error.type} {r.error.message}" if r.error else r.cause,
}
#: Words that people use for a column.
_ALIASES = {
    "is": "state", "outcome": "state", "cause": "error", "dir": "output", "number": "run",
    "toks": "tok/s", "rate": "tok/s", "duration": "took", "time": "took", "attempt": "try",
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """A filter as it was typed."""

    said: str
    terms: tuple[Callable[[RunSummary, float], bool], ...]
    unclear: tuple[str, ...] = ()
    """Terms that compare what cannot be compared; they are taken as plain words."""

    def matches(self, run: RunSummary, now: float) -> bool:
        """``now`` is the host's clock in epoch seconds, for runs that go on and for ``age``."""
        return all(term(run, now) for term in self.terms)


def parse(said: str) -> Filter:
    """Any text is a filter; nothing raises."""
    terms, unclear = [], []
    for word in said.split():
        term = _compared(word) or _worded(word)
        if term is None:
            continue
        terms.append(term)
        if re.search(r"[<>]", word) and _compared(word) is None:
            unclear.append(word)
    return Filter(said, tuple(terms), tuple(unclear))


def _worded(word: str) -> Callable[[RunSummary, float], bool] | None:
    found = _TERM.fullmatch(word)
    if found is None or not (word := word.strip("!-")):
        return None
    negated = bool(found["not"])
    key = (found["key"] or "").lower()
    column = _TEXTS.get(_ALIASES.get(key, key)) if found["how"] in (":", "=") else None
    value = (found["value"] if column else word).casefold()

    def term(run: RunSummary, _: float) -> bool:
        return (value in (column(run).casefold() if column else _whole(run))) is not negated

    return term


#: What a run's line says, by the run's id: a history of thousands is searched at every key.
_SAID: dict[str, tuple[RunSummary, str]] = {}
_SAID_MOST = 50_000


def _whole(run: RunSummary) -> str:
    """Everything that a line says, casefolded; worked out once for each summary."""
    known = _SAID.get(run.run)
    if known is not None and known[0] is run:
        return known[1]
    if len(_SAID) >= _SAID_MOST:
        _SAID.clear()
    said = " ".join(look(run) for look in _TEXTS.values()).casefold()
    _SAID[run.run] = (run, said)
    return said


def _compared(word: str) -> Callable[[RunSummary, float], bool] | None:
    found = _TERM.fullmatch(word)
    if found is None or found["key"] is None or found["how"] not in ("<", ">", "<=", ">=", "="):
        return None
    key = found["key"].lower()
    figure = _FIGURES.get(_ALIASES.get(key, key))
    wanted = _number(found["value"])
    if figure is None or wanted is None:
        return None
    how, negated = found["how"], bool(found["not"])

    def term(run: RunSummary, now: float) -> bool:
        value = figure(run, now)
        if value is None:
            return False
        return _holds(value, how, wanted) is not negated

    return term


def _holds(value: float, how: str, wanted: float) -> bool:
    if how.startswith("<"):
        return value < wanted or ("=" in how and value == wanted)
    if how.startswith(">"):
        return value > wanted or ("=" in how and value == wanted)
    return value == wanted


def _number(text: str) -> float | None:
    """``9000``, ``9k``, ``1.5m`` as a figure, ``1h30m``, ``2d``, ``90s`` as seconds."""
    plain = text.strip().lower()
    if not plain:
        return None
    if plain[-1] in _SUFFIXES and re.fullmatch(r"\d+(?:\.\d+)?", plain[:-1]) and plain[-1] != "m":
        return float(plain[:-1]) * _SUFFIXES[plain[-1]]
    if re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", plain):
        return float(plain)
    found = _DURATION.fullmatch(plain)
    if found is None or not any(found.groups()) or len(plain) > 40:
        return None
    days, hours, minutes, seconds = (float(g or 0) for g in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def took(run: RunSummary, now: float) -> float | None:
    """Seconds from start to end, or until now."""
    if run.started is None:
        return None
    return max(0.0, (run.ended if run.ended is not None else now) - run.started)


def _age(run: RunSummary, now: float) -> float | None:
    begun = run.started if run.started is not None else run.created
    return max(0.0, now - begun) if begun else None


_FIGURES: dict[str, Callable[[RunSummary, float], float | None]] = {
    "run": lambda r, _: r.number,
    "took": took,
    "samples": lambda r, _: r.samples.done,
    "skipped": lambda r, _: r.samples.skipped,
    "tok/s": lambda r, _: r.tokens_per_second,
    "tokens": lambda r, _: r.tokens,
    "bytes": lambda r, _: r.bytes,
    "try": lambda r, _: r.attempt,
    "age": _age,
    "started": lambda r, _: r.started,
}


def select(runs: Iterable[RunSummary], wanted: Filter, now: float) -> list[RunSummary]:
    """The runs that match, in their order."""
    return [run for run in runs if wanted.matches(run, now)]


def ordered(
    runs: Sequence[RunSummary], column: Column, now: float, *, reverse: bool = False
) -> list[RunSummary]:
    """By one column, the newest first among equals; what a run does not know comes last."""
    newest_first = sorted(runs, key=lambda r: r.number, reverse=True)
    figure = _FIGURES.get(column)
    if figure is not None:
        known = [r for r in newest_first if figure(r, now) is not None]
        unknown = [r for r in newest_first if figure(r, now) is None]
        return sorted(known, key=lambda r: figure(r, now) or 0.0, reverse=reverse) + unknown
    text = _TEXTS[column]
    return sorted(newest_first, key=lambda r: text(r).casefold(), reverse=reverse)
