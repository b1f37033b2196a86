"""When a stage will be over, and what that rests on; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.values import StageTime

#: A stage is called late when it takes this many seconds more than before, and a quarter more.
_LATE = 10.0

#: Shards told within less time than this came out of one read of the log: they have no pace.
_PACE_SECONDS = 0.5


@dataclass(frozen=True)
class Eta:
    seconds: float
    """From the moment it was asked for; never negative."""
    basis: str
    """In words, to be shown beside it."""
    stage: str
    """The stage's name, or ``shards`` for the part of the load that counts them."""


@dataclass(frozen=True)
class Past:
    """How long the stages of an earlier run of the same model took."""

    run: int
    stages: Sequence[StageTime]

    def seconds(self, name: str) -> float | None:
        """None when that run did not get through this stage."""
        for stage in self.stages:
            if stage.name == name and stage.ended is not None:
                return stage.ended - stage.started
        return None


def estimate(standing: Standing, host_now: float, past: Past | None = None) -> Eta | None:
    """The rest of the stage that goes on; None where nothing is known yet."""
    stage = standing.stage
    if stage is None or stage.ended is not None or standing.ended is not None:
        return None
    if stage.name == "load":
        return _as_before(stage, host_now, past) or _load(standing, host_now)
    if stage.name == "extract":
        return _extract(standing, host_now)
    return _as_before(stage, host_now, past)


def overdue(standing: Standing, host_now: float, past: Past | None) -> float | None:
    """Seconds that a stage other than extract takes more than it took in the earlier run."""
    stage = standing.stage
    if stage is None or stage.ended is not None or standing.ended is not None or past is None:
        return None
    before = past.seconds(stage.name)
    if before is None or stage.name == "extract":
        return None
    over = host_now - stage.started - before
    return over if over > max(_LATE, before / 4) else None


def _as_before(stage: StageTime, host_now: float, past: Past | None) -> Eta | None:
    before = past.seconds(stage.name) if past is not None else None
    if past is None or before is None:
        return None
    left = stage.started + before - host_now
    return Eta(left, f"as in run {past.run}", stage.name) if left > 0 else None


def shard_pace(standing: Standing) -> float | None:
    """Seconds a shard, from the first word on them to the last one; None before one can say."""
    first, last = standing.shards_first, standing.shards_last
    if first is None or last is None or last.done <= first.done:
        return None
    if last.t - first.t < _PACE_SECONDS:
        return None
    return (last.t - first.t) / (last.done - first.done)


def _load(standing: Standing, host_now: float) -> Eta | None:
    pace, last = shard_pace(standing), standing.shards_last
    if pace is None or last is None or last.done >= last.total:
        return None
    # the pace up to the last shard, not up to now: else every second of waiting adds to the rest
    left = pace * (last.total - last.done) - max(0.0, host_now - last.t)
    return Eta(max(0.0, left), "pace of the shards so far", "shards")


def _extract(standing: Standing, host_now: float) -> Eta | None:
    since = max(0.0, host_now - (standing.last or host_now))
    if standing.eta is not None:
        return Eta(max(0.0, standing.eta - since), "mean of this run", "extract")
    made = standing.done - standing.reused
    seconds = standing.stage_seconds("extract", standing.last or host_now)
    if standing.total is None or made <= 0 or not seconds:
        return None
    left = max(0, standing.total - standing.done - standing.skipped)
    return Eta(max(0.0, seconds * left / made - since), "mean of this run", "extract")
