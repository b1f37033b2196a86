"""Whether captured states are a reference's, token by token: the one place that decides.

A maximum over the whole tensor says little here: a few tokens carry values
thousands of times larger than the rest and hardly change from layer to layer
(in SmolLM2-135M 2e4 against 1e1, from layer 11 on), so that even the states of
the wrong layer come within 2e-3 of the maximum.  Each token is therefore
measured against its own length: there a layer off by one shows as 0.20 or more
for the median token, bfloat16 rounding as 0.019.

The median alone would pass a broken part and a common factor.  The limits below
stand several times above what rounding did; the figures given with each are of
58 conversations through SmolLM2-135M, 30 layers, bfloat16 against float32.
docs/verify.md has the table and how it was made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

#: What 16 bits do to the median token, by dtype.  Measured: 1.2e-6, 0.019, 0.0020.
ROUNDING = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 1e-2}

#: A sample of one token may be 1 + this times worse, of two 1 + half of it.  The first token of a
#: sample carries the huge values and rounds worst.  Measured: 0.22, 0.084, 0.057 and 0.037 for 1,
#: 2, 3 and 16 tokens, which allow 0.28, 0.16, 0.12 and 0.055.
_SHORT = 6.0

#: One token may be this many times worse than the tolerance of the median.  Measured: 5.7.
_OUTLIER = 8.0

#: Share of tokens that may be worse than that: near a border a token becomes an attention sink in
#: one precision and not in the other.  Measured: none; in texts cut at random 1 of 2000.
_RARE = 0.001

#: More than a few tokens may not be this many times worse than it.
_CROWD = 2.0

#: A few: this share, or this many of a short sample.  Measured: 0.8 %.
_FEW_SHARE, _FEW_TOKENS = 0.02, 2

#: The common factor may be off 1 by this part of the tolerance.  Measured: 0.0040, which is 0.1.
_FACTOR = 0.5

#: Least and largest factor that one token may have, whatever its error.  Measured: 0.93 to 1.13.
_OWN = (0.5, 2.0)

#: A token belongs to another when that one's state is this many times nearer.  Measured: 1.1.
_NEARER = 3.0

#: Share of tokens of a mixture-of-experts model that may be outliers: in 16 bits a token near a
#: routing border goes to another expert.
_FLIPPED = 0.05

#: Share of them that may come out nearer to another token's state: to that of the same token id
#: elsewhere.  Measured: 0.3 % (random DeepSeek-V3 of 6 layers and 4096 ids, vLLM on an H200).
_FLIPPED_AWAY = 0.01


@dataclass(frozen=True)
class Limits:
    """Of one sample."""

    median: float
    """Relative error that the median token may have."""
    routed: bool
    """Tokens may take another expert than in the reference."""


def tolerance(captured: str, reference: str) -> float:
    """For the median token of a long sample, by both dtypes: their roundings are independent."""
    return (
        math.hypot(*(ROUNDING[d] for d in (captured, reference) if d != "float32"))
        or (ROUNDING["float32"])
    )


def limits(captured: str, reference: str, tokens: int, *, experts: bool) -> Limits:
    wide = tolerance(captured, reference)
    if {captured, reference} != {"float32"}:
        wide *= 1 + _SHORT / tokens
    return Limits(wide, experts and {captured, reference} != {"float32"})


def why(captured: str, reference: str) -> str:
    """Where the tolerance comes from, for the report."""
    if {captured, reference} == {"float32"}:
        return (
            "float32 on both sides: rounding alone moved the median token by 1.2e-6 in a model of "
            "30 layers (two attention kernels), the worst by 6.3e-6"
        )
    coarse = captured if captured != "float32" else reference
    seen = {"bfloat16": "0.019", "float16": "0.002"}[coarse]
    both = "" if "float32" in (captured, reference) else "; both sides round, added in quadrature"
    return (
        f"{coarse} rounding moved the median token by at most {seen} in a model of 30 layers, a "
        f"layer off by one by 0.20 or more{both}; {1 + _SHORT:g} times as much is allowed to a "
        "sample of one token, less to longer ones"
    )


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
    """Tokens whose own factor is out of all proportion: noise, another's state."""
    empty: int
    """Tokens that are all zeros, or not finite, where the reference is neither."""
    misplaced: int
    """Tokens that are off, and much nearer to another token's reference than to their own."""


def difference(captured: Any, reference: Any, limits: Limits) -> Difference:
    """Both ``[S, H]``; computed in float32 on the CPU."""
    import torch

    a, b = captured.float().cpu(), reference.float().cpu()
    length = b.norm(dim=1)
    # a token whose reference is all zeros counts by its absolute error
    length = length.where(length > 0, length.new_ones(()))
    own = (a - b).norm(dim=1)
    errors = own / length
    factors = ((a * b).sum(dim=1) / length**2).where(b.norm(dim=1) > 0, length.new_ones(()))
    empty = ((a == 0).all(dim=1) & (b != 0).any(dim=1)) | ~torch.isfinite(a).all(dim=1)
    off = (errors > limits.median) & ~empty
    return Difference(
        tokens=len(errors),
        median=float(errors.median()),
        worst=float(errors.max()),
        outliers=int((errors > limits.median * _OUTLIER).sum()),
        crowd=int((errors > limits.median * _CROWD).sum()),
        factor=float(factors.median()),
        strange=int(((factors < _OWN[0]) | (factors > _OWN[1])).sum()),
        empty=int(empty.sum()),
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


def verdict(found: Difference, limits: Limits) -> str:
    """Why the states are not the reference's; "" when they are."""
    if found.empty:
        return f"{_tokens(found.empty)} a state of zeros, NaN or infinity"
    if not found.median <= limits.median:  # NaN is no agreement either
        return f"median token error {found.median:.2g}, allowed is {limits.median:.2g}"
    if abs(found.factor - 1.0) > limits.median * _FACTOR:
        return f"its states are {found.factor:.4g} times what they should be"
    if found.misplaced > (int(found.tokens * _FLIPPED_AWAY) if limits.routed else 0):
        return f"{_tokens(found.misplaced)} the state of another token"
    rare = int(found.tokens * _RARE)
    flipped = int(found.tokens * _FLIPPED) if limits.routed else 0
    if found.strange > max(rare, flipped):
        worst = f"the worst is off by {found.worst:.2g}"
        return f"{_tokens(found.strange)} a state that is not its own; {worst}"
    if found.outliers > max(rare, flipped):
        return _too_many(found, found.outliers, limits.median * _OUTLIER)
    if not limits.routed and found.crowd > max(_FEW_TOKENS, found.tokens * _FEW_SHARE):
        return _too_many(found, found.crowd, limits.median * _CROWD)
    return ""


def _tokens(count: int) -> str:
    return "1 token has" if count == 1 else f"{count} tokens have"


def _too_many(found: Difference, count: int, limit: float) -> str:
    return (
        f"{count / found.tokens:.1%} of its tokens are off by more than {limit:.2g}, "
        f"the worst by {found.worst:.2g}"
    )
