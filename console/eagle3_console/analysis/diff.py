"""What changed from one run to another; pure.

Keys that are the same are kept apart from those that changed, so that a screen can fold them.
Secrets are masked after the comparison: a token that changed is a change, and neither is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.values import RunDetail, RunState
from eagle3_console import bounds, scrub

#: Durations that differ by less than both, seconds and a part of the longer one, are as good as
#: the same; so are rates that differ by less than the part.
_SECONDS = 2.0
_PART = 0.05

#: Keys of a run's environment that are no installed distribution, by the section they go to.
_DRIVER = ("driver", "cuda", "gpus", "gpu_uuids")
_HOST = ("host", "kernel", "machine", "cpus", "python", "python_path", "agent_python")
_SCRIPT = ("git_commit", "git_branch", "git_dirty", "git_changes", "git_problem", "script_sha256")
_VARIABLES = {"cuda_visible_devices": "CUDA_VISIBLE_DEVICES"}


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
    folded: tuple[Change, ...] = ()
    """What did not change; of durations and rates, what hardly did."""


@dataclass(frozen=True)
class Side:
    """One of the two runs, as its headline."""

    run: str
    attempt: int
    state: RunState
    seconds: float | None
    """How long it took; None where it has not started or not ended."""
    number: int = 0
    profile: str = ""
    engine: str = ""


@dataclass(frozen=True)
class Diff:
    before: Side
    after: Side
    sections: tuple[Section, ...]

    @property
    def same(self) -> bool:
        return not any(section.changes for section in self.sections)


def diff(before: RunDetail, after: RunDetail) -> Diff:
    """What was asked, patched and installed, where it ran, and how it went."""

    def section(title: str, told: Callable[[RunDetail], Mapping[str, Any]]) -> Section:
        return _section(title, told(before), told(after))

    return Diff(
        _side(before),
        _side(after),
        (
            section("profile", _settings),
            section("patches", _patches),
            section("packages", _packages),
            section("driver", lambda d: _named(d, _DRIVER)),
            section("environment", _variables),
            section("script", lambda d: _named(d, _SCRIPT)),
            section("host", lambda d: _named(d, _HOST)),
            section("preflight", _verdicts),
            section("outcome", _outcome),
            _section("stages", _stages(before), _stages(after), _near_seconds),
            _section("throughput", _throughput(before), _throughput(after), _near),
        ),
    )


def _side(value: RunDetail) -> Side:
    run = value.summary
    ended = run.started is not None and run.ended is not None
    seconds = run.ended - run.started if ended else None  # type: ignore[operator]
    return Side(run.run, run.attempt, run.state, seconds, run.number, run.profile, run.engine)


def _settings(value: RunDetail) -> dict[str, Any]:
    """The profile, but for its variables: those are the environment's."""
    told: dict[str, Any] = to_json(value.resolved)
    return {**told, "host": {k: v for k, v in told.get("host", {}).items() if k != "env"}}


def _variables(value: RunDetail) -> dict[str, Any]:
    told: dict[str, Any] = dict(value.resolved.host.env)
    for name, variable in _VARIABLES.items():
        if name in value.environment:
            told.setdefault(variable, value.environment[name])
    return told


def _named(value: RunDetail, names: Iterable[str]) -> dict[str, Any]:
    return {name: value.environment[name] for name in names if name in value.environment}


def _packages(value: RunDetail) -> dict[str, Any]:
    others = {*_DRIVER, *_HOST, *_SCRIPT, *_VARIABLES}
    return {name: told for name, told in value.environment.items() if name not in others}


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
        "bytes": run.bytes,
    }
    if run.error is not None:
        told["error"] = f"{run.error.type}: {run.error.message}".removesuffix(": ")
    cause = value.cause.sentence if value.cause else run.cause
    if cause:
        told["first cause"] = cause
    return told


def _stages(value: RunDetail) -> dict[str, float]:
    """Seconds of each stage that has ended."""
    told: dict[str, float] = {}
    for stage in value.stages:
        if stage.ended is not None and stage.name != "done":
            told[stage.name] = told.get(stage.name, 0.0) + max(0.0, stage.ended - stage.started)
    return told


def _throughput(value: RunDetail) -> dict[str, float]:
    """The mean rate, and the shares of the time (0 to 1) that the model and the disk took."""
    told: dict[str, float] = {}
    if value.summary.tokens_per_second is not None:
        told["tok/s"] = value.summary.tokens_per_second
    parts = bounds.shares(value.throughput) if value.throughput else None
    if parts is not None:
        told |= {f"share.{name}": part for name, part in parts.items()}
    return told


Alike = Callable[[Any, Any], bool]


def _equal(before: Any, after: Any) -> bool:
    return bool(before == after)


def _near(before: Any, after: Any) -> bool:
    """Rates within a part of each other; shares, which are at most 1, within that many points."""
    if not (isinstance(before, (int, float)) and isinstance(after, (int, float))):
        return _equal(before, after)
    return abs(before - after) <= _PART * max(1.0, abs(before), abs(after))


def _near_seconds(before: Any, after: Any) -> bool:
    if not (isinstance(before, (int, float)) and isinstance(after, (int, float))):
        return _equal(before, after)
    return abs(before - after) <= max(_SECONDS, _PART * max(before, after))


def _section(
    title: str, before: Mapping[str, Any], after: Mapping[str, Any], alike: Alike = _equal
) -> Section:
    left, right = _flat(before), _flat(after)
    keys = list(dict.fromkeys([*left, *right]))
    changes: list[Change] = []
    folded: list[Change] = []
    for key in keys:
        both = (key in left) == (key in right)
        kept = both and alike(left.get(key), right.get(key))
        seen = Change(key, masked(key, left.get(key)), masked(key, right.get(key)))
        (folded if kept else changes).append(seen)
    return Section(title, tuple(changes), len(keys), tuple(folded))


def masked(key: str, value: Any) -> Any:
    """A value without the secrets that its key, an option before it, or its own shape tells of."""
    if isinstance(value, (list, tuple)):
        told = scrub.value(list(value), key.rpartition(".")[2])
        for i, option in enumerate(value[:-1]):
            if isinstance(option, str) and option.startswith("-") and scrub.is_secret(option):
                told[i + 1] = scrub.MASK
        return told
    return scrub.value(value, key.rpartition(".")[2])


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a list is one value."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flat(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat
