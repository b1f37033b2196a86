"""What changed from one run to another; pure.

Sections that are the same are kept as a count, so that a screen can fold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.values import RunDetail, RunState


@dataclass(frozen=True)
class Change:
    """One key; None means that it was not there."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Section:
    """``changes`` empty: all ``compared`` keys are the same."""

    title: str
    changes: tuple[Change, ...]
    compared: int


@dataclass(frozen=True)
class Side:
    """One of the two runs, as its headline."""

    run: str
    attempt: int
    state: RunState
    seconds: float | None
    """How long it took; None where it has not started or not ended."""


@dataclass(frozen=True)
class Diff:
    before: Side
    after: Side
    sections: tuple[Section, ...]

    @property
    def same(self) -> bool:
        return not any(section.changes for section in self.sections)


def diff(before: RunDetail, after: RunDetail) -> Diff:
    """Compare what was asked, what was patched, where it ran, and how it went."""
    return Diff(
        _side(before),
        _side(after),
        (
            _section("profile", to_json(before.resolved), to_json(after.resolved)),
            _section("patches", _patches(before), _patches(after)),
            _section("environment", before.environment, after.environment),
            _section("preflight", _verdicts(before), _verdicts(after)),
            _section("outcome", _outcome(before), _outcome(after)),
        ),
    )


def _side(value: RunDetail) -> Side:
    run = value.summary
    ended = run.started is not None and run.ended is not None
    seconds = run.ended - run.started if ended else None  # type: ignore[operator]
    return Side(run.run, run.attempt, run.state, seconds)


def _patches(value: RunDetail) -> dict[str, str]:
    # a patch that is not needed does nothing: whether it is listed says nothing about the run
    return {p.patch: p.status for p in value.patches if p.status != "not-needed"}


def _verdicts(value: RunDetail) -> dict[str, dict[str, str]]:
    """``CHECK.status`` (``forced`` for a block that was started over) and ``CHECK.saw``."""
    if value.preflight is None:
        return {}
    forced = dict.fromkeys(value.forced, "forced")
    return {
        v.check: {"status": forced.get(v.check, v.status), "saw": v.saw}
        for v in value.preflight.verdicts
    }


def _outcome(value: RunDetail) -> dict[str, Any]:
    run = value.summary
    told: dict[str, Any] = {
        "state": run.state,
        "engine": run.engine,
        "samples.total": run.samples.total,
        "samples.done": run.samples.done,
        "samples.skipped": run.samples.skipped,
        "tokens": run.tokens,
    }
    if run.error is not None:
        told["error"] = f"{run.error.type}: {run.error.message}".removesuffix(": ")
    return told


def _section(title: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Section:
    left, right = _flat(before), _flat(after)
    keys = list(dict.fromkeys([*left, *right]))
    changes = tuple(
        Change(key, left.get(key), right.get(key))
        for key in keys
        if left.get(key) != right.get(key) or (key in left) != (key in right)
    )
    return Section(title, changes, len(keys))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a list is one value."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flat(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat
