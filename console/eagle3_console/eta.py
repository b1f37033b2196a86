"""When a stage will be over, and what that rests on; pure."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.protocol.fold import Standing


@dataclass(frozen=True)
class Eta:
    seconds: float
    """From the moment it was asked for; never negative."""
    basis: str
    """In words, to be shown beside it."""
    stage: str


def estimate(standing: Standing, host_now: float) -> Eta | None:
    """The rest of the stage that goes on; None where nothing is known yet."""
    stage = standing.stage
    if stage is None or stage.ended is not None or standing.ended is not None:
        return None
    if stage.name == "load":
        return _load(standing, host_now)
    if stage.name == "extract":
        return _extract(standing, host_now)
    return None


def _load(standing: Standing, host_now: float) -> Eta | None:
    done, total = standing.shards_done, standing.shards_total
    seconds = standing.stage_seconds("load", standing.last or host_now)
    if not done or not total or not seconds or done >= total:
        return None
    # the pace up to the last shard, not up to now: else every second of waiting adds to the rest
    since = host_now - (standing.last or host_now)
    left = seconds * (total - done) / done - max(0.0, since)
    return Eta(max(0.0, left), "pace of the shards so far", "load")


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
