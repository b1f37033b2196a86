"""Whether the run stands still, and what of it does: no sample, no write, no GPU; pure.

What is silence depends on the stage: an extraction that made a sample a second is quiet after a
minute, an engine that starts says nothing for as long as it did the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.values import HostSample

from . import formats
from .eta import Past, shard_pace
from .store import ENDED, Point, State

#: The least silence (seconds) that is worth a word.
LEAST = 60.0
#: Samples, and shards, that could have come meanwhile.
_SAMPLES, _SHARDS = 10, 20
#: Seconds until the first sample: graphs are compiled, the first file is synced.
_FIRST = 300.0
#: Seconds that a stage may say nothing when no earlier run tells how long it takes.
_UNKNOWN = 600.0
#: The least that it may say nothing where one does.
_QUIET = 180.0
#: A GPU below this (percent) does nothing worth the name.
_IDLE = 5.0
#: Figures of the GPUs that are older (seconds) say nothing about now.
_STALE = 15.0
#: A GPU that waits in a collective runs one small kernel all the time: full use, little power.
_SPIN_USE, _SPIN_POWER = 99, 0.4

_WHAT = {"extract": "sample", "load": "shard"}


@dataclass(frozen=True)
class Stall:
    seconds: float
    """Since the run last came further."""
    stage: str
    idle: float | None
    """Seconds for which every GPU did nothing, 0 while one works; None where that is not known."""
    spins: bool = False
    """All GPUs are in use at the power of a wait."""

    @property
    def nothing_moves(self) -> bool:
        return self.idle is not None and self.idle >= min(LEAST, self.seconds)

    @property
    def words(self) -> str:
        what = f"no {_WHAT.get(self.stage, 'word')}"
        silent = formats.duration(self.seconds)
        if self.nothing_moves:
            idle = formats.duration(min(self.idle or 0.0, self.seconds))
            write = ", no write" if self.stage == "extract" else ""
            return f"nothing moves: {what}{write} for {silent}, GPUs idle for {idle}"
        if self.idle is None:
            return f"{what} for {silent}; nothing is known of the GPUs"
        if self.spins:
            return f"{what} for {silent}; GPUs at full use but little power: ranks may wait"
        return f"{what} for {silent}; GPUs busy"


def of(state: State) -> Stall | None:
    """None while the run goes on, has ended, or nobody can know: the link is down."""
    standing, run = state.standing, state.run
    stage, since = standing.stage, standing.moved
    if not state.live or standing.ended or stage is None or since is None:
        return None
    if stage.ended is not None or stage.name in ("preflight", "done"):
        return None
    if run is not None and (run.state in ENDED or run.state == "queued"):
        return None
    silent = state.host_now - since
    if silent <= patience(standing, state.past):
        return None
    idle = idle_for(state.history, state.host_now)
    return Stall(silent, stage.name, idle, _spins(state.host))


def patience(standing: Standing, past: Past | None) -> float:
    """Seconds of silence that are usual in the stage that goes on."""
    stage = standing.stage
    name = stage.name if stage is not None else ""
    if name == "extract":
        made = standing.done - standing.reused
        seconds = standing.stage_seconds("extract", standing.moved)
        if made <= 0 or not seconds:
            return _FIRST
        return max(LEAST, _SAMPLES * seconds / made)
    pace = shard_pace(standing)
    reading = (standing.shards_done or 0) < (standing.shards_total or 0)
    if name == "load" and pace is not None and reading:
        return max(LEAST, _SHARDS * pace)
    before = past.seconds(name) if past is not None else None
    return _UNKNOWN if before is None else max(_QUIET, 1.25 * before)


def idle_for(history: Mapping[str, Sequence[Point]], now: float) -> float | None:
    """Seconds for which no GPU did anything; None without fresh figures of any."""
    found = [points for key, points in history.items() if key.startswith("gpu:") and points]
    known = [[p for p in points if p.value is not None] for points in found]
    known = [points for points in known if points and now - points[-1].t <= _STALE]
    if not known:
        return None
    return max(0.0, min(now - _busy_at(points) for points in known))


def _busy_at(points: Sequence[Point]) -> float:
    """When this GPU last did something; the beginning of what is known when it never did."""
    for point in reversed(points):
        if point.value is not None and point.value >= _IDLE:
            return point.t
    return points[0].t


def _spins(sample: HostSample | None) -> bool:
    gpus = [gpu for gpu in sample.gpus if not gpu.error] if sample is not None else []
    return bool(gpus) and all(
        gpu.utilization is not None
        and gpu.utilization >= _SPIN_USE
        and gpu.power is not None
        and gpu.power_limit
        and gpu.power < _SPIN_POWER * gpu.power_limit
        for gpu in gpus
    )
