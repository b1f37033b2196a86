"""How far captured states are from a reference, token by token.

A maximum over the whole tensor says little here: a few tokens carry values
thousands of times larger than the rest and hardly change from layer to layer
(in SmolLM2-135M 2e4 against 1e1, from layer 11 on), so that even the states of
the wrong layer come within 2e-3 of the maximum.  Each token is therefore
measured against its own length: there a layer off by one shows as 0.2 or more
for the median token, bfloat16 rounding as 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Median token error that is still rounding, by the captured dtype.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 4e-2}

#: One token may be this many times worse than the tolerance of the median.
_OUTLIER = 8.0

#: Share of tokens of a mixture-of-experts model that may be worse: in 16 bits a token near a
#: routing border goes to another expert.
_FLIPPED = 0.05


@dataclass(frozen=True)
class Difference:
    """Of one layer's states ``[S, H]`` from the reference."""

    median: float
    """Over tokens, of the 2-norm of the difference over the 2-norm of the reference."""
    worst: float
    outliers: float
    """Share of tokens whose error is above the outliers' limit."""


def difference(captured: Any, reference: Any, dtype: str) -> Difference:
    """Both ``[S, H]``; computed in float32 on the CPU."""
    a, b = captured.float().cpu(), reference.float().cpu()
    # a token whose reference is all zeros counts by its absolute error
    length = b.norm(dim=1)
    errors = (a - b).norm(dim=1) / length.where(length > 0, length.new_ones(()))
    limit = TOLERANCE[dtype] * _OUTLIER
    return Difference(
        median=float(errors.median()),
        worst=float(errors.max()),
        outliers=float((errors > limit).float().mean()),
    )


def verdict(found: Difference, dtype: str, *, experts: bool) -> str:
    """Why the states are not the reference's; "" when they are."""
    tolerance = TOLERANCE[dtype]
    if not found.median <= tolerance:  # NaN is no agreement either
        return f"median token error {found.median:.2g}, allowed is {tolerance:.2g}"
    allowed = _FLIPPED if experts and dtype != "float32" else 0.0
    if found.outliers > allowed:
        return (
            f"{found.outliers:.1%} of its tokens are off by more than {tolerance * _OUTLIER:.2g}, "
            f"the worst by {found.worst:.2g}"
        )
    return ""
