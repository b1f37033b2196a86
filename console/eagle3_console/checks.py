"""What the console knows of the preflight, and how each piece of news changes it; pure.

A part of ``store.State``: one preflight at a time, its progress, its report, and what was done
about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from eagle3_agent.protocol.messages import Probing
from eagle3_agent.protocol.values import Action, Problem, Report, Verdict

from .verdicts import replaced

#: What was done about one report: more than this many are not shown.
DEEDS = 8


@dataclass(frozen=True)
class Deed:
    """An action that a person said yes to, and what became of it."""

    check: str
    title: str
    """The check's."""
    action: Action
    done: tuple[str, ...] = ()
    """What was done, a line each."""
    helped: bool = False
    now: str = ""
    """What the check saw afterwards."""
    problem: Problem | None = None
    """Why it was not done, or why that is not known."""


@dataclass(frozen=True)
class Checks:
    report: Report | None = None
    """The newest preflight seen here."""
    deep: bool = False
    """It was a deep one."""
    since: float | None = None
    """Since when a preflight, or an action, goes on (workstation's clock)."""
    starting: bool = False
    """A run begins if it finds no block."""
    going_deep: bool = False
    probing: Probing | None = None
    """How far it is; None before its first word."""
    acting: str = ""
    """Title of the action that is under way."""
    deeds: tuple[Deed, ...] = ()
    """What was done since a person last asked for a check, oldest first."""


@dataclass(frozen=True)
class CheckBegan:
    now: float
    starting: bool = False
    deep: bool = False
    after_deed: bool = False
    """Not asked for by a person: what was done before it is still news."""


@dataclass(frozen=True)
class Probed:
    probing: Probing


@dataclass(frozen=True)
class CheckEnded:
    """``report`` is None when there is none to show: a start that went through, or an error."""

    report: Report | None = None


@dataclass(frozen=True)
class ActBegan:
    now: float
    title: str


@dataclass(frozen=True)
class ActEnded:
    deed: Deed
    verdict: Verdict | None = None
    """The same check, made again; None when nothing is known of it."""


News = Union[CheckBegan, Probed, CheckEnded, ActBegan, ActEnded]
NEWS = (CheckBegan, Probed, CheckEnded, ActBegan, ActEnded)


def apply(checks: Checks, news: News) -> Checks:
    """``checks`` after one more piece of news."""
    if isinstance(news, CheckBegan):
        return replace(
            checks,
            since=news.now,
            starting=news.starting,
            going_deep=news.deep,
            probing=None,
            deeds=checks.deeds if news.after_deed else (),
        )
    if isinstance(news, Probed):
        return replace(checks, probing=news.probing) if checks.since is not None else checks
    if isinstance(news, ActBegan):
        return replace(checks, since=news.now, acting=news.title, probing=None)
    if isinstance(news, ActEnded):
        report = checks.report
        if report is not None and news.verdict is not None:
            report = replaced(report, news.verdict)
        deeds = (*checks.deeds, news.deed)[-DEEDS:]
        return replace(checks, since=None, acting="", report=report, deeds=deeds)
    ended = replace(checks, since=None, starting=False, going_deep=False, probing=None)
    if news.report is None:
        return ended
    return replace(ended, report=news.report, deep=checks.going_deep)
