"""Layers against the model's config: verdicts from facts."""

from __future__ import annotations

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.model import layers
from eagle3_agent.preflight.model.model_facts import PROBE, ModelFacts
from eagle3_agent.protocol.values import Verdict
from support.preflight import profile


def verdict(wanted: tuple[int, ...], count: int | None = 30, problem: str = "") -> Verdict:
    facts = known((PROBE, ModelFacts("/m", problem=problem, layers=count)))
    return layers.CHECK.decide(facts, profile(capture_layers=wanted))


def test_layers_in_range_that_end_in_the_last_pass() -> None:
    found = verdict((2, 15, 27, 29))
    assert found.status == "pass"
    assert "of 30" in found.saw


@pytest.mark.parametrize("wanted", [(2, 99), (-1, 29), (30,), (2, 10**12)])
def test_a_layer_out_of_range_blocks(wanted: tuple[int, ...]) -> None:
    found = verdict(wanted)
    assert found.status == "block"
    assert "not in 0..29 (the model has 30 layers)" in found.saw
    assert "0 to 29" in found.todo


def test_no_layer_blocks() -> None:
    assert verdict(()).status == "block"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ((2, 15, 27), "the last entry is 27, the model's last layer 29"),
        ((15, 2, 29), "not ascending"),
        ((2, 2, 29), "named twice"),
    ],
)
def test_what_is_probably_not_meant_warns(wanted: tuple[int, ...], words: str) -> None:
    found = verdict(wanted)
    assert found.status == "warn"
    assert words in found.saw


def test_a_model_that_was_not_read_warns_with_the_reason() -> None:
    found = verdict((2,), None, "does not exist")
    assert found.status == "warn"
    assert "does not exist" in found.saw


def test_a_model_probe_that_did_not_answer_warns() -> None:
    silent = Facts(silent={"model": "did not answer within 30 s"})
    assert layers.CHECK.decide(silent, profile()).status == "warn"


def test_a_thousand_layers_stay_readable() -> None:
    assert len(verdict(tuple(range(1000)), 30).saw) < 400
