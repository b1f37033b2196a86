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
    assert "before the final norm" in found.saw


@pytest.mark.parametrize("wanted", [(2, 99), (-1, 29), (30,), (2, 10**12)])
def test_a_layer_out_of_range_blocks(wanted: tuple[int, ...]) -> None:
    found = verdict(wanted)
    assert found.status == "block"
    assert "not in 0..29 (the model has 30 layers)" in found.saw
    assert found.todo


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ((2, 99), "Use layers from 0 to 29: [2, 15, 27, 29] is EAGLE-3's usual choice."),
        ((3, 16, 28, 30), "count the embeddings as 0 (HF's hidden_states, vLLM's aux layers): "
         "as states after a layer they are [2, 15, 27, 29]."),
        ((2, 15, -1), "Counted from the end, -1 being the last, they are [2, 15, 29]."),
        ((0, 30), "Use layers from 0 to 29"),
    ],
)  # fmt: skip
def test_ids_of_another_convention_are_recognised(wanted: tuple[int, ...], words: str) -> None:
    found = verdict(wanted)
    assert found.status == "block"
    assert words in found.todo


def test_the_convention_is_spelled_out() -> None:
    found = verdict((2, 30, 58, 60), 61)
    assert found.saw == (
        "layers [2, 30, 58, 60] of 61, 0-based, the state after each; 60, the last, is the "
        "verifier's, before the final norm"
    )
    assert "0 is after the first layer, not the embeddings" in verdict((0, 29)).saw


def test_the_usual_choice() -> None:
    assert layers.usual(61) == (2, 30, 58, 60)
    assert layers.usual(4) == (1, 2, 3)
    assert layers.usual(1) == (0,)
    assert "[2, 15, 27, 29] is EAGLE-3's usual choice" in verdict(()).todo


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


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ((2, 15, 27), "EAGLE-3's triple lacks the verifier's state: [2, 15, 27, 29]."),
        ((3, 16, 28), "the triple in vLLM's ids (input of layer k): as states after a layer it is "
         "[2, 15, 27, 29]."),
        ((15, 2, 2), "ending in 29: [2, 15, 29]."),
    ],
)  # fmt: skip
def test_what_was_meant_is_offered(wanted: tuple[int, ...], words: str) -> None:
    found = verdict(wanted)
    assert found.status == "warn"
    assert words in found.todo


def test_a_model_that_was_not_read_warns_with_the_reason() -> None:
    found = verdict((2,), None, "does not exist")
    assert found.status == "warn"
    assert "does not exist" in found.saw


def test_a_model_probe_that_did_not_answer_warns() -> None:
    silent = Facts(silent={"model": "did not answer within 30 s"})
    assert layers.CHECK.decide(silent, profile()).status == "warn"


def test_a_thousand_layers_stay_readable() -> None:
    assert len(verdict(tuple(range(1000)), 30).saw) < 400
