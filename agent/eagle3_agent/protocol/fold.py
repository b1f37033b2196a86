"""Where a run stands, as a function of its events; pure.

The agent folds a run's file to make the history's line, the console folds the
same lines as they arrive: one function, so that both screens agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .events import (
    Aborting,
    Diagnosed,
    Ended,
    Event,
    Failure,
    Load,
    Note,
    Patched,
    Plan,
    Progress,
    Skipped,
    Spawned,
    Stage,
    Throughput,
    Wrote,
)
from .values import Cause, ErrorInfo, PatchFinding, Samples, StageTime


@dataclass(frozen=True)
class Standing:
    """The sum of a run's events so far."""

    stages: tuple[StageTime, ...] = ()
    failed_stage: str = ""
    shards_done: int | None = None
    shards_total: int | None = None
    shards_first: Load | None = None
    """The first word on the shards of this load: where their pace is measured from."""
    shards_last: Load | None = None
    total: int | None = None
    planned_tokens: int | None = None
    planned_bytes: int | None = None
    reused: int = 0
    done: int = 0
    skipped: int = 0
    tokens: int = 0
    bytes: int = 0
    rate: float | None = None
    """Tokens a second over ``window`` seconds."""
    window: float | None = None
    eta: float | None = None
    throughput: Throughput | None = None
    wrote: Wrote | None = None
    patches: tuple[PatchFinding, ...] = ()
    applied: tuple[str, ...] = ()
    warnings: tuple[Note, ...] = ()
    error: ErrorInfo | None = None
    cause: Cause | None = None
    spawned: Spawned | None = None
    aborting: Aborting | None = None
    ended: Ended | None = None
    last: float | None = None
    """Epoch seconds of the newest event."""
    moved: float | None = None
    """Epoch seconds of the newest event that says the run went on: a sample, a shard, a stage."""

    @property
    def stage(self) -> StageTime | None:
        """The stage that goes on, or the last one that did."""
        return self.stages[-1] if self.stages else None

    @property
    def samples(self) -> Samples:
        return Samples(self.total, self.done, self.skipped)

    def stage_seconds(self, name: str, now: float | None = None) -> float | None:
        """Duration of a stage; up to ``now`` while it goes on, None if it never began."""
        for stage in self.stages:
            if stage.name == name:
                end = stage.ended if stage.ended is not None else now
                return None if end is None else max(0.0, end - stage.started)
        return None

    def mean_rate(self, now: float | None = None) -> float | None:
        """Tokens a second over the whole extract stage; None before it began."""
        seconds = self.stage_seconds("extract", now if now is not None else self.last)
        return self.tokens / seconds if seconds and self.tokens else None


def fold(standing: Standing, event: Event) -> Standing:
    """``standing`` after one more event."""
    changes = _changes(standing, event)
    if _goes_on(standing, event):
        changes["moved"] = event.t
    return replace(standing, last=event.t, **changes)


def _goes_on(standing: Standing, event: Event) -> bool:
    """Whether the run came further: not by figures that repeat themselves, nor by a note."""
    if isinstance(event, Progress):
        before = (standing.done, standing.skipped, standing.bytes)
        return (event.done, event.skipped, event.bytes) != before
    if isinstance(event, Load):
        return event.done != standing.shards_done or event.total != standing.shards_total
    return isinstance(event, (Stage, Wrote, Skipped, Plan, Spawned))


def _changes(standing: Standing, event: Event) -> dict[str, Any]:
    """Fields of Standing that ``event`` changes, with their new values."""
    if isinstance(event, Progress):
        return {
            "done": event.done,
            "total": event.total,
            "skipped": event.skipped,
            "tokens": event.tokens,
            "bytes": event.bytes,
            "rate": event.tokens_per_second,
            "window": event.window,
            "eta": event.eta,
        }
    if isinstance(event, Throughput):
        return {"throughput": event}
    if isinstance(event, Wrote):
        return {"wrote": event}
    if isinstance(event, Skipped):
        return {}  # counted by Progress, listed by whoever keeps the lines
    if isinstance(event, Stage):
        return _stage_changes(standing, event)
    if isinstance(event, Plan):
        return {
            "total": event.total,
            "planned_tokens": event.tokens,
            "planned_bytes": event.bytes,
            "reused": event.reused,
        }
    if isinstance(event, Load):
        return _load_changes(standing, event)
    if isinstance(event, Patched):
        return _patch_changes(standing, event)
    if isinstance(event, Note):
        kept = (*standing.warnings, event)[-100:] if event.level == "warning" else standing.warnings
        return {"warnings": kept}
    if isinstance(event, Failure):
        # the first is the cause; what fails while it unwinds is not
        return {"error": standing.error or event.error}
    if isinstance(event, Diagnosed):
        return {"cause": event.cause}
    if isinstance(event, Spawned):
        return {"spawned": event}
    if isinstance(event, Aborting):
        return {"aborting": event}
    return _end_changes(standing, event)


def _load_changes(standing: Standing, event: Load) -> dict[str, Any]:
    first, last = standing.shards_first, standing.shards_last
    if first is None or last is None or event.total != last.total or event.done < last.done:
        first = event  # a second checkpoint, or the first one over again
    return {
        "shards_done": event.done,
        "shards_total": event.total,
        "shards_first": first,
        "shards_last": event,
    }


def _patch_changes(standing: Standing, event: Patched) -> dict[str, Any]:
    name = event.finding.patch
    applied = tuple(p for p in standing.applied if p != name)
    return {
        "patches": (*(p for p in standing.patches if p.patch != name), event.finding),
        "applied": (*applied, name) if event.applied else applied,
    }


def _stage_changes(standing: Standing, event: Stage) -> dict[str, Any]:
    stages = standing.stages
    if event.status == "start":
        return {"stages": (*_closed(stages, event.t), StageTime(event.name, event.t))}
    if stages and stages[-1].name == event.name:
        stages = _closed(stages, event.t)
    failed = event.name if event.status == "failed" else standing.failed_stage
    return {"stages": stages, "failed_stage": failed}


def _end_changes(standing: Standing, event: Ended) -> dict[str, Any]:
    stages, failed = standing.stages, standing.failed_stage
    unfinished = bool(stages) and stages[-1].ended is None
    if unfinished and event.state in ("failed", "lost") and not failed:
        failed = stages[-1].name
    return {
        "stages": _closed(stages, event.t),
        "failed_stage": failed,
        "ended": event,
        "eta": None,
    }


def _closed(stages: tuple[StageTime, ...], at: float) -> tuple[StageTime, ...]:
    """``stages`` with the last one ended, if it was not."""
    if not stages or stages[-1].ended is not None:
        return stages
    return (*stages[:-1], replace(stages[-1], ended=at))
