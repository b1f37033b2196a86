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

#: A bare CUDA context (620 MiB) and what the driver keeps of the whole for itself (615 MiB), as
#: measured on an H200 with driver 580.  Other parts differ: an allowance, from nothing to this.
OVERHEAD = (620 + 615) * 1024 * 1024

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
        """What is left for all else; negative when vLLM would not start."""
        return self.total - self.used - self.share(utilization)


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
    yield "start", Span(0, OVERHEAD), beside
    yield "share", asked.within, room.share(utilization)
    yield "beside", asked.states + Span(0, OVERHEAD), beside


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
    ways: tuple[Callable[[Case], Change | None], ...] = (
        _by_share,
        _by_tokens,
        _by_ranks,
        _by_length,
    )
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
    for beside, within in (
        (asked.states.most + OVERHEAD, asked.within.most),
        (asked.states.least, asked.within.least),
    ):
        most = min((r.total - r.used - beside) / r.total for r in rooms)
        low = math.ceil(max(within / r.total for r in rooms) / _STEP) * _STEP
        high = math.floor(most / _STEP) * _STEP
        share = round(min(max(now, low), high), 2)
        if 0 < low <= share and case.fit(_with_share(profile, share)).status != "block":
            return share
    return None


def _eased(case: Case, profile: Profile, words: str) -> Change | None:
    """This profile, with another share if that is what it takes; None when it blocks even so."""
    status = case.fit(profile).status
    share = None if status == "pass" else _best_share(case, profile)
    if share is not None and share != profile.model.gpu_memory_utilization:
        status = case.fit(_with_share(profile, share)).status
        words += f" and model.gpu_memory_utilization = {share:g}"
    return Change(words, status) if status != "block" else None


def _by_tokens(case: Case) -> Change | None:
    engine = case.profile.engine

    def made(count: int) -> Change | None:
        tokens = count * _TOKENS_STEP
        sequences = min(engine.max_num_seqs, tokens) if engine.max_num_seqs else None
        changed = replace(engine, max_num_batched_tokens=tokens, max_num_seqs=sequences)
        words = f"engine.max_num_batched_tokens = {tokens}"
        return _eased(case, replace(case.profile, engine=changed), words)

    return _largest((step_tokens(case.profile, case.engine) - 1) // _TOKENS_STEP, made)


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
    model = replace(case.profile.model, tensor_parallel_size=ranks)
    words = f"model.tensor_parallel_size = {ranks}"
    return _eased(case, replace(case.profile, model=model), words)


def _by_length(case: Case) -> Change | None:
    model = case.profile.model

    def made(count: int) -> Change | None:
        changed = replace(case.profile, model=replace(model, max_model_len=count * BLOCK))
        words = f"model.max_model_len and data.seq_length = {count * BLOCK}"
        return _eased(case, changed, words)

    return _largest((model.max_model_len - 1) // BLOCK, made, _LENGTH_LEAST // BLOCK)


def _largest(most: int, made: Callable[[int], Change | None], least: int = 1) -> Change | None:
    """The change of the largest number that passes, all below it doing so too; None without one."""
    found = None
    low, high = least, most
    while low <= high:
        middle = (low + high) // 2
        change = made(middle)
        if change is not None and change.status == "pass":
            found, low = change, middle + 1
        else:
            high = middle - 1
    return found


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
