"""Turns, ratios and spreads; no benchmark is run."""

from __future__ import annotations

import pytest

from bench import measure


def compared(ours: tuple[float, ...], peer: tuple[float, ...]) -> measure.Comparison:
    return measure.Comparison("a.b", "this", "that", "s", "lower", ours, peer)


async def test_sides_take_turns_and_the_warm_up_is_thrown_away() -> None:
    order: list[str] = []
    said: list[str] = []

    async def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    values = await measure.take_turns(
        {"ours": lambda: side("A"), "peer": lambda: side("B")}, 3, said.append
    )

    assert "".join(order) == "ABABABAB"
    assert values == {"ours": (3.0, 5.0, 7.0), "peer": (4.0, 6.0, 8.0)}
    assert said == ["warming up", "round 1 of 3", "round 2 of 3", "round 3 of 3"]


async def test_a_run_without_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        await measure.take_turns({}, 0, lambda text: None)


def test_a_ratio_is_formed_within_its_round() -> None:
    # the second round was ten times slower for both: the ratio does not see it
    found = compared((2.0, 20.0, 3.0), (1.0, 10.0, 1.0))
    assert found.ratios == (2.0, 2.0, 3.0)
    assert found.ratio == measure.Spread(2.0, 2.0, 3.0)


def test_values_of_different_rounds_are_never_paired() -> None:
    with pytest.raises(ValueError, match="shorter"):
        assert compared((1.0, 2.0), (1.0,)).ratios


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ((4.0,), measure.Spread(4.0, 4.0, 4.0)),
        ((9.0, 1.0, 2.0), measure.Spread(1.0, 2.0, 9.0)),
        ((4.0, 1.0, 2.0, 3.0), measure.Spread(1.0, 2.5, 4.0)),
    ],
)
def test_a_spread_names_both_ends_and_the_middle(
    values: tuple[float, ...], spread: measure.Spread
) -> None:
    assert measure.Spread.of(values) == spread
