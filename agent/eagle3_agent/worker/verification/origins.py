"""Where states come from: which layer a whole tensor holds, which token or sample a row is of.

Places count decoder layers; ``BEFORE`` is the input of layer 0, and the number of layers stands
for the output of the final norm.  All tensors are on the CPU; what is captured is float32, a place
is turned into it when it is looked at, so that a model's layers are not held twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

BEFORE = -1

#: One explanation is preferred to a simpler one that fits too when this many times nearer.
_FAR_BETTER = 4.0

#: The own layer with a factor is preferred to another one without when this many times nearer.
_BETTER = 1.5

#: Rows compared at a time.
_PART = 512

#: A row is another's when that one is this many times nearer than its own.
_NEARER = 3.0

#: Where most rows are right, one that is its own may be this many times the tolerance off, and no
#: more than half a layer's own step, if no other is nearer.
_LOOSE, _LOOSEST = 8.0, 0.35


@dataclass(frozen=True)
class Origin:
    """The one state that a whole tensor fits."""

    place: int
    factor: float
    """The tensor is so many times that state; 1.0 unless it deviates."""


def fitting(captured: Any, places: Mapping[int, Any], tolerance: float) -> dict[int, float]:
    """Median token error against each of ``places`` (each ``[S, H]``) that fits as it stands.

    Often more than one for a sample of a single token: its state may hardly change between layers.
    """
    found = {p: _median_error(captured, ref, 1.0) for p, ref in places.items()}
    return {p: error for p, error in found.items() if error <= tolerance}


def whole(captured: Any, places: Mapping[int, Any], own: int, tolerance: float) -> Origin | None:
    """Which of ``places`` the median token of ``captured`` fits best, or None.

    As it stands, or up to a common factor where that fits far better; ``own`` where it fits about
    as well as the best, since the first token's state hardly changes between some layers.
    """
    plain = {p: _median_error(captured, ref, 1.0) for p, ref in places.items()}
    factors = {p: _factor(captured, ref) for p, ref in places.items()}
    scaled = {
        p: _median_error(captured, ref, factors[p])
        for p, ref in places.items()
        if abs(factors[p]) > 1e-6
    }
    best, other = _best(plain, own, tolerance), _best(scaled, own, tolerance)
    rest = scaled.get(other, math.inf)
    better = _BETTER if other == own != best else _FAR_BETTER
    if plain[best] <= tolerance and rest * better >= plain[best]:
        return Origin(best, 1.0)
    return Origin(other, factors[other]) if rest <= tolerance else None


def _best(found: dict[int, float], own: int, tolerance: float) -> int:
    best = min(found, key=lambda p: found[p], default=own)
    near = max(2 * found.get(best, 0.0), tolerance / 10)
    return own if found.get(own, math.inf) <= near else best


def normalised(captured: Any, reference: Any, tolerance: float) -> tuple[float, float] | None:
    """Least and largest factor where each row has the right direction and a factor of its own."""
    factors = _row_factors(captured, reference)
    if len(factors) < 2 or not bool((factors > 0).all()):
        return None
    rest = float(errors(captured / factors[:, None], reference).max())
    common = _median_error(captured, reference, _factor(captured, reference))
    if rest > tolerance or rest * _FAR_BETTER >= common:
        return None
    return float(factors.min()), float(factors.max())


def cosine(captured: Any, reference: Any) -> float:
    """Median over rows."""
    size = captured.norm(dim=1) * reference.norm(dim=1)
    return float(((captured * reference).sum(dim=1) / size.clamp_min(1e-30)).median())


@dataclass(frozen=True)
class Row:
    """What one captured row holds."""

    kind: Literal["right", "not-finite", "zero", "moved", "other", "unknown"]
    source: int = -1
    """Row of the sample it is of."""
    sample: int = -1
    """Index of the other sample."""


def rows(captured: Any, reference: Any, tolerance: float) -> list[Row]:
    """One for each row of ``captured``, which may have more or fewer than ``reference``."""
    import torch

    both = min(len(captured), len(reference))
    own = torch.full((len(captured),), math.inf)
    own[:both] = errors(captured[:both], reference[:both])
    most = float(own.nan_to_num(math.inf).median()) <= tolerance
    loose = max(tolerance, min(_LOOSE * tolerance, _LOOSEST)) if most else tolerance
    source, apart = nearest(captured, reference)
    finite = torch.isfinite(captured).all(dim=1)
    zero = (captured == 0).all(dim=1)
    made = []
    for t in range(len(captured)):
        mine, other = float(own[t]), float(apart[t])
        if not finite[t]:
            made.append(Row("not-finite"))
        elif mine <= tolerance:
            made.append(Row("right", t))
        elif zero[t]:
            made.append(Row("zero"))
        elif other <= 2 * tolerance and other * _NEARER < mine:
            made.append(Row("moved", int(source[t])))
        else:
            made.append(Row("right", t) if mine <= loose else Row("unknown"))
    return made


def nearest(captured: Any, pool: Any) -> tuple[Any, Any]:
    """Of each row, the row of ``pool`` in the same direction, and the relative error to it.

    Rows are brought to length 1 before their products are taken: beside the few huge tokens
    products lose what is compared here.
    """
    import torch

    unit = pool / pool.norm(dim=1, keepdim=True).clamp_min(1e-30)
    found, apart = [], []
    for start in range(0, len(captured), _PART):
        part = captured[start : start + _PART]
        mine = part / part.norm(dim=1, keepdim=True).clamp_min(1e-30)
        best = (mine @ unit.T).nan_to_num(-2.0).argmax(dim=1)
        found.append(best)
        apart.append(errors(part, pool[best]))
    return torch.cat(found), torch.cat(apart)


def errors(captured: Any, reference: Any) -> Any:
    """Of each row, the 2-norm of the difference over that of the reference."""
    size = reference.norm(dim=1)
    return (captured - reference).norm(dim=1) / size.where(size > 0, size.new_ones(()))


def _median_error(captured: Any, reference: Any, factor: float) -> float:
    return float(errors(captured / factor, reference.float()).nan_to_num(math.inf).median())


def _factor(captured: Any, reference: Any) -> float:
    factor = float(_row_factors(captured, reference.float()).nanmedian())
    return factor if math.isfinite(factor) else 0.0


def _row_factors(captured: Any, reference: Any) -> Any:
    return (captured * reference).sum(dim=1) / reference.square().sum(dim=1).clamp_min(1e-30)
