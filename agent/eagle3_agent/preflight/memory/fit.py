"""Does a demand fit into a GPU, and which smallest change of the profile makes it fit; pure.

vLLM 0.16 at start (``v1/worker/gpu_worker.py``, ``v1/worker/utils.py``): it refuses when less
than ``gpu_memory_utilization`` of the whole memory is free once its context stands; weights, a
trial forward and the cache must fit into that share, and the cache then takes all of the rest of
it.  The captured states' buffer is made after that, from what lies beside the share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eagle3_agent.protocol.values import EngineName, Profile, Status

from .checkpoint import CheckpointFacts
from .demand import BLOCK, Demand, demand, step_tokens
from .sharding import Span

#: A bare CUDA context with its libraries, as measured on an H200 (driver 580).
CONTEXT = 620 * 1024 * 1024

#: vLLM's own log rounds to two digits; so does a person who writes a profile.
_STEP = 0.01
_TOKENS_STEP = 256
_LENGTH_LEAST = 128
_RANKS_MOST = 64

Place = Literal["start", "share", "beside"]


@dataclass(frozen=True)
class Room:
    """One GPU."""

    index: int
    total: int
    used: int
    """By others, before the run."""

    def share(self, utilization: float) -> int:
        return math.ceil(self.total * utilization)

    def beside(self, utilization: float) -> int:
        """What is left for the states; negative when vLLM would not start."""
        return self.total - self.used - CONTEXT - self.share(utilization)


@dataclass(frozen=True)
class Fit:
    status: Status
    place: Place = "share"
    """Where it is tightest, when it is no pass."""
    room: Room | None = None


def fits(asked: Demand, rooms: Sequence[Room], utilization: float) -> Fit:
    """The worst of all ranks: a block where even the least sum is too much."""
    worst = Fit("pass")
    for room in rooms:
        for place, span, free in _sums(asked, room, utilization):
            if span.least > free:
                return Fit("block", place, room)
            if span.most > free and worst.status == "pass":
                worst = Fit("warn", place, room)
    return worst


def _sums(asked: Demand, room: Room, utilization: float) -> Iterator[tuple[Place, Span, int]]:
    beside = room.beside(utilization)
    yield "start", Span(0, 0), beside
    yield "share", asked.within, room.share(utilization)
    yield "beside", asked.states, beside


@dataclass(frozen=True)
class Change:
    """One that helps: the profile's keys with their new values."""

    words: str
    status: Status
    """What the plan would say then."""


@dataclass(frozen=True)
class Case:
    """What a change is tried on."""

    seen: CheckpointFacts
    profile: Profile
    engine: EngineName
    rooms: tuple[Room, ...]
    """Every GPU that the run could see, in its order."""

    def fit(self, profile: Profile) -> Fit:
        ranks = profile.model.tensor_parallel_size
        asked = demand(self.seen, profile, self.engine)
        return fits(asked, self.rooms[:ranks], profile.model.gpu_memory_utilization)


def way_out(case: Case) -> Change | None:
    """The smallest change that passes; else the smallest that may; None when none helps.

    In the order of what it costs: a share costs nothing, tokens of a step some speed, ranks other
    GPUs, a length data.
    """
    ways: tuple[Callable[[Case], Change | None], ...] = (_by_share, _by_tokens, _by_ranks, _by_len)
    found = [change for change in (way(case) for way in ways) if change is not None]
    passing = [change for change in found if change.status == "pass"]
    return next(iter(passing or found), None)


def _by_share(case: Case) -> Change | None:
    share = _best_share(case, case.profile)
    if share is None:
        return None
    changed = _with_share(case.profile, share)
    return Change(f"model.gpu_memory_utilization = {share:g}", case.fit(changed).status)


def _best_share(case: Case, profile: Profile) -> float | None:
    """The share nearest to the profile's with which it passes, or else may; None without one."""
    asked = demand(case.seen, profile, case.engine)
    rooms = case.rooms[: profile.model.tensor_parallel_size]
    if not rooms:
        return None
    now = profile.model.gpu_memory_utilization
    for states, within in (
        (asked.states.most, asked.within.most),
        (asked.states.least, asked.within.least),
    ):
        most = min((r.total - r.used - CONTEXT - states) / r.total for r in rooms)
        low = math.ceil(max(within / r.total for r in rooms) / _STEP) * _STEP
        high = math.floor(most / _STEP) * _STEP
        share = round(min(max(now, low), high), 2)
        if 0 < low <= share and case.fit(_with_share(profile, share)).status != "block":
            return share
    return None


def _by_tokens(case: Case) -> Change | None:
    engine = case.profile.engine
    now = step_tokens(case.profile, case.engine)

    def made(count: int) -> Profile:
        tokens = count * _TOKENS_STEP
        sequences = min(engine.max_num_seqs, tokens) if engine.max_num_seqs else None
        changed = replace(engine, max_num_batched_tokens=tokens, max_num_seqs=sequences)
        return replace(case.profile, engine=changed)

    count = _largest((now - 1) // _TOKENS_STEP, lambda n: case.fit(made(n)).status == "pass")
    if count:
        return Change(f"engine.max_num_batched_tokens = {count * _TOKENS_STEP}", "pass")
    return None


def _by_ranks(case: Case) -> Change | None:
    """More of the GPUs that are there."""
    found: list[Change] = []
    for ranks in range(case.profile.model.tensor_parallel_size + 1, len(case.rooms) + 1):
        change = _with_ranks(case, ranks)
        if change is not None and change.status == "pass":
            return change
        found += [change] if change is not None else []
    return next(iter(found), None)


def _with_ranks(case: Case, ranks: int) -> Change | None:
    if not divides(case.seen, ranks):
        return None
    changed = replace(case.profile, model=replace(case.profile.model, tensor_parallel_size=ranks))
    words = f"model.tensor_parallel_size = {ranks}"
    status = case.fit(changed).status
    if status != "pass":
        share = _best_share(case, changed)
        if share is not None:
            status = case.fit(_with_share(changed, share)).status
            words += f", model.gpu_memory_utilization = {share:g}"
    return Change(words, status) if status != "block" else None


def _by_len(case: Case) -> Change | None:
    model = case.profile.model
    steps = (model.max_model_len - 1) // BLOCK

    def made(count: int) -> Profile:
        return replace(case.profile, model=replace(model, max_model_len=count * BLOCK))

    count = _largest(steps, lambda n: case.fit(made(n)).status == "pass")
    length = count * BLOCK
    if length < _LENGTH_LEAST:
        return None
    return Change(f"model.max_model_len = {length} (and data.seq_length)", "pass")


def _largest(most: int, good: Callable[[int], bool]) -> int:
    """The largest number from 1 to ``most`` that is good, all below it being so too; or 0."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


def divides(seen: CheckpointFacts, ranks: int) -> bool:
    """Whether vLLM takes this number of ranks: heads, and KV heads one way or the other.

    vLLM 0.16 ``config/model.py`` (``verify_with_parallel_config``) and ``layers/linear.py``.
    """
    heads, kv = seen.decoder.heads, seen.decoder.kv_heads
    if seen.decoder.latent or not kv:
        return heads % ranks == 0
    return heads % ranks == 0 and (kv % ranks == 0 or ranks % kv == 0)


def least_ranks(case: Case) -> int | None:
    """GPUs like these that it would take; None when no number of them does."""
    if not case.rooms:
        return None
    tightest = min(case.rooms, key=lambda r: r.total - r.used)
    for ranks in range(1, _RANKS_MOST + 1):
        alike = replace(case, rooms=(tightest,) * ranks)
        change = _with_ranks(alike, ranks)
        if change is not None and change.status == "pass":
            return ranks
    return None


def _with_share(profile: Profile, share: float) -> Profile:
    return replace(profile, model=replace(profile.model, gpu_memory_utilization=share))
