"""Check ``layers``: every captured layer exists, and the last one is the verifier's.

The conventions that get confused: entry i here is the state after decoder layer i, from 0, which
is HF's ``hidden_states[i + 1]``; HF's own 0 is the embeddings and its n the state after the last
layer's norm; vLLM's ``set_aux_hidden_state_layers`` takes the input of layer k, so k is our k - 1,
and n is the last.  EAGLE-3's usual choice is (2, n // 2, n - 3) and the last layer: in our ids what
speculators 0.3 and 0.4 capture when they are told nothing (``vllm_hidden_states_generator.py``), in
vLLM's ids what its Llama captures by itself (``get_eagle3_aux_hidden_state_layers``): the same
numbers, one layer apart.
"""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import number, show
from eagle3_agent.protocol.values import Profile, Verdict

from .model_facts import PROBE

_CONVENTION = "Entry i is the state after decoder layer i, counted from 0."
_SHOWN = 32


def judge(facts: Facts, profile: Profile) -> Verdict:
    count = facts.get(PROBE).layers
    layers = profile.capture.layers
    shown = _list(layers)
    if not layers:
        return CHECK.verdict(
            "block",
            "capture.layers is empty",
            "There would be nothing to write.",
            f"Name the layers: {_list(usual(count))} is EAGLE-3's usual choice."
            if count
            else "Name the layers, such as [2, 15, 27, 29] for a model of 30.",
        )
    if count is None:
        saw = f"layers {shown}; the model's number of layers is not known"
        why = show(facts.get(PROBE).problem or facts.get(PROBE).config_problem)
        return CHECK.verdict(
            "warn",
            saw + (f" (the model folder {why})" if why else ""),
            "A layer out of range fails after the load.",
            "Look up num_hidden_layers in the model's config.json.",
        )
    wrong = [i for i in layers if not 0 <= i < count]
    if wrong:
        return CHECK.verdict(
            "block",
            f"layers {shown}; {', '.join(map(str, wrong[:8]))} not in 0..{count - 1} "
            f"(the model has {count} layers)",
            f"{_CONVENTION} A layer that does not exist fails after the load.",
            _renumbered(layers, count),
        )
    return _judge_order(layers, count, shown)


def usual(count: int) -> tuple[int, ...]:
    """EAGLE-3's three layers and the last, as states after a layer; ascending, each once."""
    return tuple(sorted({i for i in (2, count // 2, count - 3, count - 1) if 0 <= i < count}))


def _renumbered(layers: tuple[int, ...], count: int) -> str:
    """The list in our ids, when all of it fits another convention; else the range."""
    shifted = tuple(i - 1 for i in layers)
    if max(layers) == count and min(shifted) >= 0:
        return (
            f"These look like ids that count the embeddings as 0 (HF's hidden_states, vLLM's aux "
            f"layers): as states after a layer they are {_list(shifted)}."
        )
    counted = tuple(i % count for i in layers)
    if min(layers) >= -count and max(layers) < count and len(set(counted)) == len(counted):
        return f"Counted from the end, -1 being the last, they are {_list(counted)}."
    return f"Use layers from 0 to {count - 1}: {_list(usual(count))} is EAGLE-3's usual choice."


def _judge_order(layers: tuple[int, ...], count: int, shown: str) -> Verdict:
    doubts = []
    if len(set(layers)) != len(layers):
        twice = next(i for i in layers if layers.count(i) > 1)
        doubts.append(f"layer {twice} is named twice")
    if list(layers) != sorted(layers):
        doubts.append("the order is not ascending")
    if layers[-1] != count - 1:
        doubts.append(f"the last entry is {layers[-1]}, the model's last layer {count - 1}")
    saw = f"layers {shown} of {number(count)}, 0-based, the state after each"
    if not doubts:
        first = "; 0 is after the first layer, not the embeddings" if 0 in layers else ""
        return CHECK.verdict(
            "pass",
            f"{saw}; {count - 1}, the last, is the verifier's, before the final norm{first}",
        )
    return CHECK.verdict(
        "warn",
        f"{saw}: {'; '.join(doubts)}",
        f"{_CONVENTION} A trainer takes the last entry as the verifier's last state "
        "and joins the others in the order in which they stand.",
        _meant(layers, count),
    )


def _meant(layers: tuple[int, ...], count: int) -> str:
    ascending = tuple(sorted({*layers, count - 1}))
    triple = (2, count // 2, count - 3)
    if layers == triple:
        return f"EAGLE-3's triple lacks the verifier's state: {_list((*triple, count - 1))}."
    if layers == tuple(i + 1 for i in triple):
        return (
            f"These are the triple in vLLM's ids (input of layer k): as states after a layer it is "
            f"{_list((*triple, count - 1))}."
        )
    return f"If this is not meant: ascending, each once, ending in {count - 1}: {_list(ascending)}."


def _list(layers: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, layers[:_SHOWN]))}{', …' if len(layers) > _SHOWN else ''}]"


CHECK = Check(
    id="layers",
    title="Layers in range",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="The number of layers stands in the model's config.json, which was not read.",
    silence_todo="Mend the check on the model first.",
)
