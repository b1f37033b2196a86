"""Where nothing could be recomputed: the samples, and pairs, that the substitutes look at."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_agent.protocol.values import Substitute
from eagle3_agent.worker import prepare
from eagle3_agent.worker.dataset import Bad
from eagle3_agent.worker.manifest import Entry

from . import compare, substitutes
from .job import Job
from .substitutes import Held

#: Pairs with a common prefix that are compared.
_PAIRS = 8

#: Tokens that such a pair has to share.
_SHARED = 4


def check(given: Job, chosen: Sequence[Entry]) -> tuple[Substitute, ...]:
    """Every substitute over ``chosen``, and the pairs over the whole folder."""
    samples = given.rows(e.index for e in chosen)
    held = [Held(samples[e.index], given.content(e).states) for e in chosen]
    # rounding differs with the batch that a sample was in: as between two dtypes
    tolerance = compare.tolerance(given.marker.dtype, given.marker.dtype)
    return substitutes.run(
        held, _twins(given), given.layers, given.info.layers, given.ends(), tolerance
    )


def _twins(given: Job) -> list[tuple[Held, Held]]:
    """Pairs of samples that begin with the same tokens, each sample once at most."""
    whole = {entry.index: entry for entry in given.good}
    waiting: dict[tuple[int, ...], Held] = {}
    pairs: list[tuple[Held, Held]] = []
    for row in prepare.open_data(given.profile, given.info):
        if isinstance(row, Bad) or row.sample.index not in whole:
            continue
        key = tuple(row.sample.input_ids[:_SHARED])
        if len(key) < _SHARED:
            continue
        held = Held(row.sample, ())
        other = waiting.pop(key, None)
        if other is None:
            waiting[key] = held
            continue
        pairs.append((_filled(given, whole, other), _filled(given, whole, held)))
        if len(pairs) == _PAIRS:
            break
    return pairs


def _filled(given: Job, whole: dict[int, Entry], held: Held) -> Held:
    return Held(held.sample, given.content(whole[held.sample.index]).states)
