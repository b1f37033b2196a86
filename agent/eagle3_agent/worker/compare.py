"""How far captured states are from a reference, token by token.

A maximum over the whole tensor says little here: a few tokens carry values
thousands of times larger than the rest and hardly change from layer to layer
(in SmolLM2-135M 2e4 against 1e1, from layer 11 on), so that even the states of
the wrong layer come within 2e-3 of the maximum.  Each token is therefore
measured against its own length: there a layer off by one shows as 0.2 or more
for the median token, bfloat16 rounding as 0.01.

The median alone would pass a broken part and a common factor.  The limits
below stand several times above what rounding did in 58 conversations through
SmolLM2-135M in bfloat16 against float32 (layers 2, 15, 27, 29), given with each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Median token error that is still rounding, by the captured dtype.  Measured: 0.017.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 4e-2}

#: One token may be this many times worse than the tolerance of the median.  Measured: 4.2.
_OUTLIER = 8.0

#: More than a few tokens may not be this many times worse than it.
_CROWD = 2.0

#: A few: this share, or this many of a short sample.  Measured: 0.8 %.
_FEW_SHARE, _FEW_TOKENS = 0.02, 2

#: The common factor may be off 1 by this part of the tolerance.  Measured: 0.0034, which is 0.09.
_FACTOR = 0.5

#: Least and largest factor that one token may have, whatever its error.  Measured: 0.94 to 1.13.
_OWN = (0.5, 2.0)

#: A token belongs to another when that one's state is this many times nearer.  Measured: 1.1.
_NEARER = 3.0

#: Share of tokens of a mixture-of-experts model that may be outliers: in 16 bits a token near a
#: routing border goes to another expert.
_FLIPPED = 0.05


@dataclass(frozen=True)
class Difference:
    """Of one layer's states ``[S, H]`` from the reference."""

    tokens: int
    median: float
    """Over tokens, of the 2-norm of the difference over the 2-norm of the reference."""
    worst: float
    outliers: int
    """Tokens whose error is above the outliers' limit."""
    crowd: int
    """Tokens whose error is above the crowd's limit."""
    factor: float
    """Median over tokens of captured . reference / reference . reference: 1 but for scaling."""
    strange: int
    """Tokens whose own factor is out of all proportion: zeros, noise, another's state."""
    misplaced: int
    """Tokens that are off, and much nearer to another token's reference than to their own."""


def difference(captured: Any, reference: Any, dtype: str) -> Difference:
    """Both ``[S, H]``; computed in float32 on the CPU."""
    a, b = captured.float().cpu(), reference.float().cpu()
    length = b.norm(dim=1)
    # a token whose reference is all zeros counts by its absolute error
    length = length.where(length > 0, length.new_ones(()))
    own = (a - b).norm(dim=1)
    errors = own / length
    factors = ((a * b).sum(dim=1) / length**2).where(b.norm(dim=1) > 0, length.new_ones(()))
    off = errors > TOLERANCE[dtype]
    return Difference(
        tokens=len(errors),
        median=float(errors.median()),
        worst=float(errors.max()),
        outliers=int((errors > TOLERANCE[dtype] * _OUTLIER).sum()),
        crowd=int((errors > TOLERANCE[dtype] * _CROWD).sum()),
        factor=float(factors.median()),
        strange=int(((factors < _OWN[0]) | (factors > _OWN[1])).sum()),
        misplaced=_misplaced(a[off], b, own[off]),
    )


def _misplaced(suspects: Any, reference: Any, own: Any) -> int:
    """How many of ``suspects [N, H]`` have a reference much nearer than their own distance."""
    import torch

    found = 0
    for start in range(0, len(suspects), 64):  # N x S distances, a part at a time
        part = slice(start, start + 64)
        # not by matrix products: beside the few huge tokens they lose what is compared here
        apart = torch.cdist(suspects[part], reference, compute_mode="donot_use_mm_for_euclid_dist")
        found += int((apart.min(dim=1).values * _NEARER < own[part]).sum())
    return found


def verdict(found: Difference, dtype: str, *, experts: bool) -> str:
    """Why the states are not the reference's; "" when they are."""
    tolerance = TOLERANCE[dtype]
    if not found.median <= tolerance:  # NaN is no agreement either
        return f"median token error {found.median:.2g}, allowed is {tolerance:.2g}"
    if abs(found.factor - 1.0) > tolerance * _FACTOR:
        return f"its states are {found.factor:.4g} times what they should be"
    if found.misplaced:
        return f"{_tokens(found.misplaced)} the state of another token"
    if found.strange:
        worst = f"the worst is off by {found.worst:.2g}"
        return f"{_tokens(found.strange)} a state that is not its own; {worst}"
    routed = experts and dtype != "float32"
    if found.outliers > (found.tokens * _FLIPPED if routed else 0):
        return _too_many(found, found.outliers, tolerance * _OUTLIER)
    if not routed and found.crowd > max(_FEW_TOKENS, found.tokens * _FEW_SHARE):
        return _too_many(found, found.crowd, tolerance * _CROWD)
    return ""


def _tokens(count: int) -> str:
    return "1 token has" if count == 1 else f"{count} tokens have"


def _too_many(found: Difference, count: int, limit: float) -> str:
    return (
        f"{count / found.tokens:.1%} of its tokens are off by more than {limit:.2g}, "
        f"the worst by {found.worst:.2g}"
    )
