"""What is wrong with states that are not the reference's: one sentence for each fault.

Runs only after a comparison has failed.  Whole layers are told first (another layer, another
order, a factor, a norm too many), then rows within a layer that is otherwise itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eagle3_agent.protocol.values import Fault

from . import origins
from .origins import BEFORE, Origin, Row
from .reference import Trace

Others = Callable[[], Iterator[Trace]]
"""Traces of samples whose rows may have come in here, computed as they are asked for."""

#: Share of the unknown rows of every layer after which no further sample is tried.
_ENOUGH = 0.9

#: Share of the moved rows that have to be moved by the same number to be called shifted.
_SHIFTED = 0.5

#: Share of all rows from which a shift is one of the whole sample.
_MOST = 0.75

#: Factors of two layers that are one.
_ALIKE = 0.03

_SAME_DIRECTION = 0.9
"""Cosine from which states are called inexact and not noise."""


@dataclass(frozen=True)
class Case:
    """One sample whose comparison failed."""

    asked: tuple[int, ...]
    captured: Sequence[Any]
    """One ``[S, H]`` per asked layer, as it stands in the file."""
    trace: Trace
    before: Any | None
    """``[S, H]`` input of layer 0, where it is known."""
    normed: Any | None
    """``[S, H]`` output of the final norm, where it is known."""
    failed: frozenset[int]
    """Positions in ``asked`` that are not right."""
    tolerance: float
    routed_scaling: float | None = None
    """``routed_scaling_factor`` of the model."""


Told = dict[tuple[str, str], list[int]]
"""Kind and sentence of each fault, with the layers that it concerns."""


def faults(case: Case, others: Others) -> tuple[Fault, ...]:
    """At least one for a case with a failed position, the widest first."""
    told: Told = {}
    places = _places(case)
    fits = {i: _fitting(case, i, places) for i in range(len(case.asked))}
    if not _tell_arrangement(told, case, fits):
        inside = _tell_layers(told, case, places)
        _tell_rows(told, case, inside, others)
    return tuple(
        Fault(kind, text, tuple(dict.fromkeys(layers)))
        for (kind, text), layers in sorted(told.items(), key=lambda item: -len(item[1]))
    )


def _add(told: Told, kind: str, text: str, layer: int) -> None:
    told.setdefault((kind, text), []).append(layer)


# --------------------------------------------------------------------------- whole layers


def _places(case: Case) -> dict[int, Any]:
    places = dict(enumerate(case.trace.states))
    if case.before is not None:
        places[BEFORE] = case.before
    if case.normed is not None:
        places[len(case.trace.states)] = case.normed
    return places


def _tell_layers(told: Told, case: Case, places: Mapping[int, Any]) -> list[int]:
    """Layer by layer; returns the positions whose fault is within the layer."""
    held: dict[int, int] = {i: p for i, p in enumerate(case.asked) if i not in case.failed}
    factors: dict[int, float] = {}
    inside = []
    for i in sorted(case.failed):
        origin = _whole(case, i, places)
        own = origin is None or origin.place == case.asked[i]
        if own and (text := _normalised(case, i)):
            _add(told, "scale", text, case.asked[i])
        elif origin is None or (own and origin.factor == 1.0):
            inside.append(i)
        else:
            held[i], factors[i] = origin.place, origin.factor
    for i in sorted(held):
        if held[i] != case.asked[i]:
            _add(told, *_layer_text(case, held, i), case.asked[i])
    _tell_factors(told, case, {i: f for i, f in factors.items() if f != 1.0})
    return inside


def _tell_factors(told: Told, case: Case, factors: dict[int, float]) -> None:
    """Factors that are alike are one fault."""
    while factors:
        first = min(factors)
        alike = [i for i, f in factors.items() if abs(f / factors[first] - 1) <= _ALIKE]
        text = _factor_text(case, median(factors[i] for i in alike))
        for i in sorted(alike):
            _add(told, "scale", text, case.asked[i])
            del factors[i]


def _fitting(case: Case, i: int, places: Mapping[int, Any]) -> dict[int, float]:
    mine = case.captured[i].float()
    whole = len(mine) == len(places[0])
    return origins.fitting(mine, places, case.tolerance) if whole else {}


def _whole(case: Case, i: int, places: Mapping[int, Any]) -> Origin | None:
    mine = case.captured[i].float()
    if len(mine) != len(places[0]):
        return None
    return origins.whole(mine, places, case.asked[i], case.tolerance)


def _tell_arrangement(told: Told, case: Case, fits: dict[int, dict[int, float]]) -> bool:
    """A fault that explains every layer at once: all off by the same number, or another order."""
    last = len(case.trace.states) - 1
    for by in sorted(range(-last - 1, last + 1), key=abs):
        places = [layer + by for layer in case.asked]
        if by and all(p <= last and p in fits[i] for i, p in enumerate(places)):
            count = "one layer" if abs(by) == 1 else f"{abs(by)} layers"
            way = "above" if by > 0 else "below"
            fitting = ", ".join(_place(p) for p in places)
            text = f"off by {count}: each holds the state {count} {way} ({fitting} fit)"
            for layer in case.asked:
                _add(told, "wrong-layer", text, layer)
            return True
    order = _order(case.asked, fits)
    if order is None or order == list(case.asked):
        return False
    text = f"the states stand in the order {order}, asked was {list(case.asked)}"
    for layer, held in zip(case.asked, order):
        if layer != held:
            _add(told, "wrong-order", text, layer)
    return True


def _order(asked: tuple[int, ...], fits: dict[int, dict[int, float]]) -> list[int] | None:
    """The asked layers, one for each position that fits there; the nearest first."""

    def place(i: int, left: Counter[int]) -> list[int] | None:
        if i == len(asked):
            return []
        for layer in sorted((p for p in fits[i] if left[p]), key=lambda p: fits[i][p]):
            rest = place(i + 1, left - Counter([layer]))
            if rest is not None:
                return [layer, *rest]
        return None

    return place(0, Counter(asked))


def _layer_text(case: Case, held: dict[int, int], i: int) -> tuple[str, str]:
    """Kind and sentence for a position that holds another place whole."""
    if held[i] == len(case.trace.states):
        return "post-norm", "holds the output of the final norm, not the state before it"
    twins = [j for j in held if held[j] == held[i]]
    if len(twins) > max(1, case.asked.count(held[i])):
        where = " and ".join(str(case.asked[j]) for j in sorted(twins))
        return "repeated-layer", f"{_place(held[i])} is repeated: it stands for the layers {where}"
    return "wrong-layer", f"holds the state after {_place(held[i])}"


def _place(place: int) -> str:
    return "the embedding" if place == BEFORE else f"layer {place}"


def _factor_text(case: Case, factor: float) -> str:
    hidden = case.captured[0].shape[1]
    known = {"sqrt(hidden size)": math.sqrt(hidden), "1/sqrt(hidden size)": hidden**-0.5}
    if case.routed_scaling:
        known["routed_scaling_factor"] = case.routed_scaling
        known["1/routed_scaling_factor"] = 1 / case.routed_scaling
    names = [n for n, value in known.items() if abs(factor / value - 1) <= _ALIKE]
    named = f", the model's {names[0]}" if names else ""
    return f"every state is {factor:.3g} times what it should be{named}"


# --------------------------------------------------------------------------- rows


def _tell_rows(told: Told, case: Case, inside: list[int], others: Others) -> None:
    mine = {i: case.captured[i].float() for i in inside}
    found = {
        i: origins.rows(mine[i], case.trace.states[case.asked[i]].float(), case.tolerance)
        for i in inside
    }
    _search(case, mine, found, others)
    for i, made in found.items():
        for kind, text in _rows_texts(case, i, mine[i], made):
            _add(told, kind, text, case.asked[i])


def _normalised(case: Case, i: int) -> str:
    mine, reference = case.captured[i].float(), case.trace.states[case.asked[i]].float()
    if len(mine) != len(reference):
        return ""
    span = origins.normalised(mine, reference, case.tolerance)
    if span is None:
        return ""
    return (
        f"each row has the right direction and a factor of its own, {span[0]:.3g} to "
        f"{span[1]:.3g}: the states were normalised"
    )


def _search(case: Case, mine: dict[int, Any], found: dict[int, list[Row]], others: Others) -> None:
    """Name the sample of rows that are none of this one's; changes ``found``."""
    unknown = {
        i: [t for t, row in enumerate(made) if row.kind == "unknown"] for i, made in found.items()
    }
    wanted = {i: len(at) for i, at in unknown.items() if at}
    if not wanted:
        return
    for trace in others():
        for i in wanted:
            at = [t for t in unknown[i] if found[i][t].kind == "unknown"]
            if not at:
                continue
            pool = trace.states[case.asked[i]].float()
            source, apart = origins.nearest(mine[i][at], pool)
            for t, u, error in zip(at, source.tolist(), apart.tolist()):
                if error <= 2 * case.tolerance:
                    found[i][t] = Row("other", u, trace.sample.index)
        left = {i: sum(found[i][t].kind == "unknown" for t in unknown[i]) for i in wanted}
        if all(left[i] <= (1 - _ENOUGH) * wanted[i] for i in wanted):
            return


def _rows_texts(case: Case, i: int, mine: Any, found: list[Row]) -> Iterator[tuple[str, str]]:
    """Kind and sentence of each fault among the rows of one layer."""
    count, tokens = len(found), len(case.trace.states[0])
    of = {kind: [t for t, row in enumerate(found) if row.kind == kind] for kind in _KINDS}
    if count != tokens:
        yield "truncated", _cut(found, tokens)
        return
    if of["not-finite"]:
        yield "not-finite", f"{_some(of['not-finite'], count)} NaN or infinity"
    if of["zero"]:
        yield _zeros(of["zero"], count)
    if of["moved"]:
        yield _moved(of["moved"], found)
    for sample in dict.fromkeys(found[t].sample for t in of["other"]):
        yield "other-sample", _foreign([t for t in of["other"] if found[t].sample == sample], found)
    if of["unknown"]:
        yield _unknown(case, i, mine, of["unknown"])
    if len(of["right"]) == count:
        yield "inexact", "every row is near its own state, and too many are not near enough"


_KINDS = ("right", "not-finite", "zero", "moved", "other", "unknown")


def _cut(found: list[Row], tokens: int) -> str:
    sources = [row.source for row in found if row.kind in ("right", "moved")]
    head = f"{len(found)} rows for {tokens} tokens"
    if not sources or len(sources) < len(found):
        return f"{head}; {len(sources)} of them are states of this sample"
    first = sources[0]
    if sources == list(range(first, first + len(found))):
        told = f"tokens {first} to {sources[-1]}"
        if first == 0:
            return f"{head}: they are {told}, the last {tokens - len(found)} are missing"
        where = "the first" if sources[-1] == tokens - 1 else "others, the first"
        return f"{head}: they are {told}, {where} {first} are missing"
    return f"{head}: they are tokens {_span(sorted(set(sources)))}"


def _zeros(at: list[int], count: int) -> tuple[str, str]:
    if len(at) == count:
        return "zeros", "every state is zero"
    if _is_tail(at, count):
        return "truncated", f"{_some(at, count)} zeros: the states end after {at[0]} tokens"
    return "zeros", f"{_some(at, count)} zeros"


def _moved(at: list[int], found: list[Row]) -> tuple[str, str]:
    sources = {found[t].source for t in at}
    count = len(found)
    if len(sources) == 1 and _is_tail(at, count) and sources == {at[0] - 1}:
        text = f"{_rows(at)} of {count} are copies of row {at[0] - 1}"
        return "truncated", f"{text}: the states end after {at[0]} tokens"
    by, most = Counter(t - found[t].source for t in at).most_common(1)[0]
    if most > 1 and most >= _SHIFTED * len(at):
        shifted = [t for t in at if t - found[t].source == by]
        way = "late" if by > 0 else "early"
        text = f"shifted by {by:+d}: row t holds the state of token t{-by:+d}, {abs(by)} {way}"
        if len(shifted) < _MOST * count:
            text += f" ({_rows(shifted)} of {count})"
        return "shifted-rows", text
    pairs = ", ".join(f"row {t} holds token {found[t].source}" for t in at[:4])
    more = f" and {len(at) - 4} more" if len(at) > 4 else ""
    return "moved-rows", f"rows are exchanged: {pairs}{more}"


def _foreign(at: list[int], found: list[Row]) -> str:
    sample = found[at[0]].sample
    offsets = Counter(found[t].source - t for t in at)
    by, most = offsets.most_common(1)[0]
    which = "every row is" if len(at) == len(found) else _some(at, len(found), verb="are")
    moved = by != 0 and most >= _SHIFTED * len(at)
    return f"{which} of sample {sample}" + (f", moved: row t is its row t{by:+d}" if moved else "")


def _unknown(case: Case, i: int, mine: Any, at: list[int]) -> tuple[str, str]:
    reference = case.trace.states[case.asked[i]].float()
    near = origins.cosine(mine[at], reference[at])
    which = "every row is" if len(at) == len(mine) else _some(at, len(mine), verb="are")
    if near >= _SAME_DIRECTION:
        return "inexact", f"{which} near the right state and not equal (cosine {near:.3f})"
    return "noise", f"{which} like no state of this sample or its neighbours (cosine {near:.2f})"


def _is_tail(at: list[int], count: int) -> bool:
    return at == list(range(count - len(at), count))


def _some(at: list[int], count: int, verb: str = "hold") -> str:
    if len(at) == 1:
        verb = {"hold": "holds", "are": "is"}[verb]
    return f"{_rows(at)} of {count} {verb}"


def _rows(at: list[int]) -> str:
    return f"row{'s' if len(at) > 1 else ''} {_span(at)}"


def _span(at: list[int]) -> str:
    """``3``, ``3 to 9``, or the first few of a scattered list."""
    if len(at) == 1:
        return str(at[0])
    if at == list(range(at[0], at[-1] + 1)):
        return f"{at[0]} to {at[-1]}"
    some = ", ".join(map(str, at[:6]))
    return some if len(at) <= 6 else f"{some} and {len(at) - 6} more"
