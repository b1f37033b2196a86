"""Chosen samples against the reference: a verdict for each layer, and the fault where one is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_agent.protocol.values import Fault, LayerCheck, SampleCheck
from eagle3_agent.worker.engines.base import Sample

from . import compare, diagnose, job
from .choose import Chosen
from .compare import Limits
from .job import Job
from .reference import Reference, Trace
from .weights import Ends, NotThere

#: Other samples in which rows are sought that are none of this one's.
_OTHERS = 16


def check(given: Job, model: Reference, chosen: Sequence[Chosen]) -> tuple[SampleCheck, ...]:
    """One for each of ``chosen``, whose files can be loaded."""
    samples = given.rows(c.entry.index for c in chosen)
    return tuple(_sample(given, model, c, samples) for c in chosen)


def _sample(
    given: Job, model: Reference, chosen: Chosen, samples: dict[int, Sample]
) -> SampleCheck:
    entry = chosen.entry
    trace = model.trace(samples[entry.index])
    states = given.content(entry).states
    experts = given.info.experts > 0
    limits = compare.limits(entry.dtype, model.dtype, len(trace.states[0]), experts=experts)
    layers = [
        _layer(layer, mine, trace.states[layer], limits)
        for layer, mine in zip(given.layers, states)
    ]
    failed = frozenset(i for i, layer in enumerate(layers) if not layer.ok)
    faults: tuple[Fault, ...] = ()
    if failed:
        case = _case(given, states, trace, failed, limits)
        picked = [i for i in samples if i != entry.index]
        faults = diagnose.faults(case, lambda: _others(given, model, chosen, picked))
    return SampleCheck(
        index=entry.index,
        ok=not failed,
        tokens=entry.tokens,
        worst_relative_error=max((c.median for c in layers if c.median is not None), default=None),
        why="; ".join(f"layer {c.layer}: {c.why}" for c in layers if not c.ok),
        role=chosen.role,
        layers=tuple(layers),
        faults=faults,
    )


def _layer(layer: int, mine: Any, reference: Any, limits: Limits) -> LayerCheck:
    if len(mine) != len(reference):
        return LayerCheck(layer, False, None, None, f"{len(mine)} rows, {len(reference)} tokens")
    found = compare.difference(mine, reference, limits)
    why = compare.verdict(found, limits)
    return LayerCheck(layer, not why, _known(found.median), _known(found.worst), why)


def _known(error: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return error if math.isfinite(error) else None


def _case(
    given: Job, states: Sequence[Any], trace: Trace, failed: frozenset[int], limits: Limits
) -> diagnose.Case:
    ends = given.ends()
    return diagnose.Case(
        asked=given.layers,
        captured=states,
        trace=trace,
        before=_before(ends, trace),
        normed=_normed(ends, trace),
        failed=failed,
        tolerance=limits.median,
        routed_scaling=None if ends is None else ends.routed_scaling,
    )


def _before(ends: Ends | None, trace: Trace) -> Any | None:
    try:
        return None if ends is None else ends.embedded(trace.sample.input_ids)
    except NotThere:
        return None


def _normed(ends: Ends | None, trace: Trace) -> Any | None:
    try:
        return None if ends is None else ends.normed(trace.states[-1])
    except NotThere:
        return None


def _others(given: Job, model: Reference, chosen: Chosen, picked: Sequence[int]) -> Iterator[Trace]:
    """Samples that rows may have come from, recomputed one at a time."""
    place = chosen.entry.index
    near = sorted(picked, key=lambda i: abs(i - place))[: _OTHERS // 4]
    beside = job.neighbours(given.good, chosen.entry, _OTHERS)
    order = list(dict.fromkeys([*near, *beside]))[:_OTHERS]
    samples = given.rows(order)
    for index in order:
        if index in samples:
            yield model.trace(samples[index])
