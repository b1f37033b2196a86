"""What can be checked of states without a second model, and what each check can and cannot show.

None of them proves a layer's numbers; together they find states of other tokens, other samples,
other layers' order, a norm too many, zeros and noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from eagle3_agent.protocol.values import Substitute
from eagle3_agent.worker.engines.base import Sample

from . import origins
from .weights import Ends, NotThere


@dataclass(frozen=True)
class Held:
    """One sample as it stands in its file."""

    sample: Sample
    states: Sequence[Any]
    """One ``[S, H]`` per asked layer."""


Status = Literal["holds", "fails", "cannot-tell"]

#: Nats by which another shift has to be better to be called the right one.
_CLEARLY = 0.25

#: Shifts that are tried on either side.
_REACH = 3

#: Least likeness, at any shift, of two layers of one model.  Measured: 0.32; of noise 0.00.
_ALIKE = 0.05

#: Two layers of one run are called the same when this near.
_SAME = 1e-3


def run(
    samples: Sequence[Held],
    twins: Sequence[tuple[Held, Held]],
    asked: tuple[int, ...],
    layers: int,
    ends: Ends | None,
    tolerance: float,
) -> tuple[Substitute, ...]:
    """``twins`` are pairs of samples that begin with the same tokens."""
    return (
        finite(samples),
        next_token(samples, asked, layers, ends),
        aligned(samples, asked),
        same_prefix(twins, asked, tolerance),
        distinct(samples, asked),
        order(samples, asked),
        growth(samples, asked),
    )


def finite(samples: Sequence[Held]) -> Substitute:
    """No NaN, no infinity, no row of zeros, in any layer."""
    import torch

    bad = []
    for held in samples:
        for state in held.states:
            if not bool(torch.isfinite(state).all()):
                bad.append(f"sample {held.sample.index} holds NaN or infinity")
                break
            if bool((state == 0).all(dim=1).any()):
                bad.append(f"sample {held.sample.index} holds rows of zeros")
                break
    return Substitute(
        "finite",
        "fails" if bad else "holds",
        "; ".join(bad[:5]) or f"{len(samples)} samples: every row finite and none all zeros",
        "No overflow and no missing rows; says nothing about the numbers' truth.",
    )


def next_token(
    samples: Sequence[Held], asked: tuple[int, ...], layers: int, ends: Ends | None
) -> Substitute:
    """The last state through the model's own final norm and head, against the tokens that follow.

    States of other rows, other samples, another layer or noise predict no better than chance; a
    shift predicts another place's tokens; a normed state predicts better without the norm.
    """
    shows = (
        "The last states are this model's, of these tokens, row for row, before the norm. "
        "Cannot see a common factor (the norm takes it out), small errors, or a layer too early: "
        "in a model of 30 layers that cost 2 nats and stayed far from chance."
    )
    if ends is None or layers - 1 not in asked:
        why = "the last layer is not captured" if ends else "the checkpoint's ends cannot be read"
        return Substitute("next-token", "cannot-tell", why, shows)
    try:
        figures = _figures(samples, asked.index(layers - 1), ends)
    except (NotThere, OSError) as error:
        return Substitute("next-token", "cannot-tell", str(error), shows)
    if figures is None:
        return Substitute("next-token", "cannot-tell", "no sample is long enough", shows)
    status, saw = _judge(figures)
    return Substitute("next-token", status, saw, shows)


@dataclass(frozen=True)
class _Figures:
    """Over all rows that have every shift's target."""

    loss: dict[int, float]
    """Mean nats by shift: 0 is the token that follows."""
    unnormed: float
    """The same for shift 0 without the final norm."""
    top: float
    """Share of rows whose likeliest token is the one that follows."""
    rows: int
    vocab_loss: float
    """Of a uniform guess."""


def _figures(samples: Sequence[Held], position: int, ends: Ends) -> _Figures | None:
    import torch

    states, targets = [], []
    for held in samples:
        ids = torch.tensor(list(held.sample.input_ids))
        rows = range(_REACH, len(ids) - 1 - _REACH)
        if not len(rows):
            continue
        at = torch.tensor(list(rows))
        states.append(held.states[position].float()[at])
        targets.append(torch.stack([ids[at + 1 + s] for s in range(-_REACH, _REACH + 1)]))
    if not states:
        return None
    found, wanted = torch.cat(states), torch.cat(targets, dim=1)
    losses, likeliest = ends.losses(ends.normed(found), wanted)
    plain, _ = ends.losses(found, wanted[_REACH : _REACH + 1])
    by_shift = {s: float(losses[s + _REACH].mean()) for s in range(-_REACH, _REACH + 1)}
    return _Figures(
        loss=by_shift,
        unnormed=float(plain.mean()),
        top=float((likeliest == wanted[_REACH]).float().mean()),
        rows=len(found),
        vocab_loss=math.log(ends.vocab()),
    )


def _judge(found: _Figures) -> tuple[Status, str]:
    own, chance = found.loss[0], found.vocab_loss - _CLEARLY
    saw = (
        f"{found.rows} rows: loss {own:.2f} nats for the token that follows (a guess has "
        f"{found.vocab_loss:.2f}), {found.top:.0%} are the likeliest"
    )
    best = min(found.loss, key=lambda s: found.loss[s])
    if found.unnormed < min(own - _CLEARLY, chance):
        return "fails", f"{saw}; without the final norm {found.unnormed:.2f}: it is in them already"
    if found.loss[best] < min(own - _CLEARLY, chance):
        return "fails", (
            f"{saw}; for the token {abs(best)} {'further on' if best > 0 else 'before'} "
            f"{found.loss[best]:.2f}: the rows are shifted by {-best:+d}"
        )
    if not own < chance:
        return "fails", (
            f"{saw}: no better than chance, so that these are not its last states (or the model "
            "is not trained)"
        )
    return "holds", saw


def aligned(samples: Sequence[Held], asked: tuple[int, ...]) -> Substitute:
    """Rows of each layer against the same rows of the next captured one, and of their neighbours.

    A layer adds to a token's state, so that the same token's states of two layers are more alike
    than those of two tokens.
    """
    shows = (
        "Every captured layer's rows stand in the same order, no layer is shifted against the "
        "others. Cannot see that all of them are shifted alike; next-token can."
    )
    depth = sorted(set(asked))
    told, bad = [], []
    for low, high in pairwise(depth):
        alike = _alike_by_shift(samples, asked.index(low), asked.index(high))
        if not alike:
            continue
        best = max(alike, key=lambda s: alike[s])
        told.append(f"{low} and {high} {alike[0]:.2f}")
        if alike[best] < _ALIKE:
            bad.append(f"layers {low} and {high} have nothing in common ({alike[best]:.2f})")
        elif best:
            bad.append(
                f"layer {high} stands {best:+d} rows against layer {low} (likeness "
                f"{alike[best]:.2f}, {alike[0]:.2f} row for row)"
            )
    if not told:
        return Substitute("aligned", "cannot-tell", "one layer, or samples too short", shows)
    saw = "; ".join(bad) or f"likeness row for row, highest of all shifts: {', '.join(told)}"
    return Substitute("aligned", "fails" if bad else "holds", saw, shows)


def _alike_by_shift(samples: Sequence[Held], low: int, high: int) -> dict[int, float]:
    """Mean likeness of row t of one layer and row t + shift of the other, by shift."""
    sums: dict[int, list[float]] = {s: [] for s in range(-_REACH, _REACH + 1)}
    for held in samples:
        a, b = _centred(held.states[low]), _centred(held.states[high])
        if len(a) < 4 * _REACH:
            continue
        for s, found in sums.items():
            first, second = a[max(0, -s) : len(a) - max(0, s)], b[max(0, s) : len(b) + min(0, s)]
            found.append(float((first * second).sum(dim=1).mean()))
    return {s: sum(found) / len(found) for s, found in sums.items() if found}


def _centred(state: Any) -> Any:
    """Rows without what they have in common, each of length 1.

    The median, since the few huge tokens would be most of a mean.
    """
    rows = state.float()
    rows = rows - rows.median(dim=0).values
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)


def same_prefix(
    twins: Sequence[tuple[Held, Held]], asked: tuple[int, ...], tolerance: float
) -> Substitute:
    """Samples that begin with the same tokens begin with the same states: the model is causal."""
    shows = (
        "States depend on their own sample's tokens alone: no rows of others, no shift within the "
        "batch, no cached prefix cut off. Cannot see what is wrong in every sample alike."
    )
    worst, tokens, bad = 0.0, 0, []
    for one, other in twins:
        shared = _shared(one.sample, other.sample)
        tokens += shared
        for layer, a, b in zip(asked, one.states, other.states):
            error = float(origins.errors(a[:shared].float(), b[:shared].float()).median())
            worst = max(worst, error)
            if not error <= 2 * tolerance:
                pair = f"{one.sample.index} and {other.sample.index}"
                bad.append(f"layer {layer} of samples {pair} differs by {error:.2g}")
                break
    if not twins:
        return Substitute("same-prefix", "cannot-tell", "no two samples begin alike", shows)
    saw = "; ".join(bad[:5]) or (
        f"{len(twins)} pairs, {tokens} shared tokens: at most {worst:.2g} apart (median token)"
    )
    return Substitute("same-prefix", "fails" if bad else "holds", saw, shows)


def _shared(one: Sample, other: Sample) -> int:
    """How many tokens both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(one.input_ids, other.input_ids)) if a != b),
        min(len(one.input_ids), len(other.input_ids)),
    )


def distinct(samples: Sequence[Held], asked: tuple[int, ...]) -> Substitute:
    """No two different layers hold the same states."""
    bad = []
    for held in samples:
        pairs = [
            (a, b)
            for i, a in enumerate(asked)
            for j, b in enumerate(asked)
            if i < j and a != b and _same(held.states[i], held.states[j])
        ]
        bad += [f"layers {a} and {b} of sample {held.sample.index} are the same" for a, b in pairs]
    return Substitute(
        "distinct",
        "fails" if bad else "holds",
        "; ".join(bad[:5]) or f"{len(set(asked))} layers differ in every sample",
        "No layer stands for another one too. Cannot see that all are off by one.",
    )


def _same(one: Any, other: Any) -> bool:
    return float(origins.errors(one.float(), other.float()).median()) < _SAME


def order(samples: Sequence[Held], asked: tuple[int, ...]) -> Substitute:
    """The nearer a layer is to the deepest captured one, the more its rows are like that one's."""
    shows = (
        "The layers stand in the order that was asked, if the deepest is right (next-token). "
        "Cannot see that all of them are off by the same number."
    )
    *others, deepest = sorted(set(asked))
    alike = {
        layer: found[0]
        for layer in others
        if (found := _alike_by_shift(samples, asked.index(layer), asked.index(deepest)))
    }
    if len(alike) < 2:
        return Substitute("order", "cannot-tell", "two layers, or samples too short", shows)
    told = ", ".join(f"{layer} {value:.2f}" for layer, value in alike.items())
    saw = f"likeness to layer {deepest} by layer: {told}"
    falls = [b for a, b in pairwise(alike) if alike[b] < alike[a]]
    if falls:
        return Substitute("order", "fails", f"{saw}; it falls at layer {falls[0]}", shows)
    return Substitute("order", "holds", saw, shows)


def growth(samples: Sequence[Held], asked: tuple[int, ...]) -> Substitute:
    """Median row norms by depth; in most models they grow."""
    norms = {
        layer: sum(
            float(h.states[asked.index(layer)].float().norm(dim=1).median()) for h in samples
        )
        / len(samples)
        for layer in sorted(set(asked))
    }
    told = ", ".join(f"{layer} {norm:.3g}" for layer, norm in norms.items())
    falls = any(b < 0.7 * a for a, b in pairwise(norms.values()))
    return Substitute(
        "growth",
        "cannot-tell" if falls else "holds",
        f"median row norm by layer: {told}" + ("; it falls, which few models do" if falls else ""),
        "A hint at a layer of another scale. A factor common to all layers cannot be seen.",
    )
