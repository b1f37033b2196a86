"""What a benchmark is, how its sides take turns, and what their figures come to.

Nothing here knows what is measured.  A machine that others use too is slow in
spells, so sides take turns within a round and a ratio is formed within its
round: a slow spell hits both.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Side = Callable[[], Awaitable[float]]
"""Does the work once and returns its figure."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Spread:
    """Of several values: all of them matter, the median is the one to quote."""

    min: float
    median: float
    max: float

    @staticmethod
    def of(values: tuple[float, ...]) -> Spread:
        return Spread(min(values), statistics.median(values), max(values))


@dataclass(frozen=True)
class Comparison:
    """One figure against its peer; entry i of both tuples is from the same round."""

    name: str
    """Stable, such as ``stream.bytes``."""
    ours: str
    """What was done, in words."""
    peer: str
    unit: str
    better: Literal["higher", "lower"]
    ours_values: tuple[float, ...]
    peer_values: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours divided by the peer's, a value a round."""
        return tuple(a / b for a, b in zip(self.ours_values, self.peer_values, strict=True))

    @property
    def ratio(self) -> Spread:
        return Spread.of(self.ratios)


@dataclass(frozen=True)
class LeftOut:
    """A comparison that this machine cannot make, and why: it is named, not passed over."""

    name: str
    why: str


Result = Comparison | LeftOut


@dataclass(frozen=True)
class Benchmark:
    """One file of this package."""

    name: str
    measures: str
    peer: str
    why: str
    """What a user would notice."""
    rounds: int
    """Repetitions unless asked otherwise."""
    run: Callable[[int, Say], Awaitable[list[Result]]]


async def take_turns(
    sides: Mapping[str, Side], rounds: int, say: Say, warm_up: int = 1
) -> dict[str, tuple[float, ...]]:
    """Run the sides A B A B …; a value a round of each.

    The first ``warm_up`` rounds fill caches and are thrown away, for all sides alike.
    """
    if rounds < 1:
        raise ValueError("at least one round is needed")
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        say("warming up" if number < 0 else f"round {number + 1} of {rounds}")
        for name, side in sides.items():
            value = await side()
            if number >= 0:
                values[name].append(value)
    return {name: tuple(seen) for name, seen in values.items()}
