"""A preflight's report in the order in which it is read, what it offers, what it knew; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from eagle3_agent.protocol.values import Action, Report, Status, Verdict

#: What stands in the way first; what cannot be told before what is well.
ORDER: tuple[Status, ...] = ("block", "warn", "skip", "pass")

_MANY: dict[Status, tuple[str, str]] = {
    "block": ("blocks", "block"),
    "warn": ("warns", "warn"),
    "skip": ("cannot tell", "cannot tell"),
    "pass": ("passes", "pass"),
}


@dataclass(frozen=True)
class Offer:
    """An action beside the check that offers it."""

    verdict: Verdict
    action: Action

    @property
    def key(self) -> tuple[str, str]:
        """What the offer is still called in the next report."""
        return self.verdict.check, self.action.id


def having(report: Report, *statuses: Status) -> tuple[Verdict, ...]:
    """The verdicts of these statuses, each kind in the report's own order."""
    kept = [v for v in report.verdicts if v.status in statuses]
    return tuple(sorted(kept, key=lambda v: ORDER.index(v.status)))


def counts(report: Report, *, without: Iterable[Status] = ()) -> list[tuple[Status, str]]:
    """``1 blocks``, ``24 pass`` and so on, those that there are."""
    told = []
    for status in ORDER:
        n = sum(v.status == status for v in report.verdicts)
        if n and status not in without:
            told.append((status, f"{n} {_MANY[status][n != 1]}"))
    return told


def offers(report: Report, checks: Iterable[str] = ()) -> tuple[Offer, ...]:
    """Every action that is offered, in reading order; with ``checks``, those of these alone."""
    wanted = frozenset(checks)
    return tuple(
        Offer(verdict, action)
        for verdict in having(report, "block", "warn", "skip", "pass")
        if not wanted or verdict.check in wanted
        for action in verdict.actions
    )


def folded_words(report: Report) -> list[str]:
    """``25 pass`` and ``1 cannot tell``: what is left when blocks and warnings are told."""
    told = counts(report, without=("block", "warn"))
    return [words for _, words in reversed(told)]


def replaced(report: Report, verdict: Verdict) -> Report:
    """The report with one check made again; its figures of time stay."""
    found = tuple(verdict if v.check == verdict.check else v for v in report.verdicts)
    return replace(report, verdicts=found)


def already_known(report: Report, forced: Iterable[str] = ()) -> str:
    """What a preflight knew before the run, in one line."""
    clean = sum(v.status == "pass" for v in report.verdicts)
    over = frozenset(forced)
    told = [f"{clean} of {len(report.verdicts)} checks were clean"]
    named = (
        ("started over", [v.check for v in report.verdicts if v.check in over]),
        ("blocked", [v.check for v in report.blocking if v.check not in over]),
        ("warned of", [v.check for v in having(report, "warn")]),
        ("could not tell", [v.check for v in having(report, "skip")]),
    )
    told += [f"{words} {_few(checks)}" for words, checks in named if checks]
    return "; ".join(told)


def _few(names: list[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
