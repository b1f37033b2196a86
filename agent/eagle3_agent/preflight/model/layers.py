"""Check ``layers``: every captured layer exists, and the last one is the verifier's."""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Profile, Verdict

from .model_facts import PROBE

_CONVENTION = "Entry i is the state after decoder layer i, counted from 0."


def judge(facts: Facts, profile: Profile) -> Verdict:
    count = facts.get(PROBE).layers
    layers = profile.capture.layers
    shown = f"[{', '.join(map(str, layers[:32]))}{', …' if len(layers) > 32 else ''}]"
    if not layers:
        return CHECK.verdict(
            "block",
            "capture.layers is empty",
            "There would be nothing to write.",
            "Name the layers, such as [2, 15, 27, 29] for a model of 30.",
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
            f"Use layers from 0 to {count - 1}; the last entry is usually {count - 1}.",
        )
    return _judge_order(layers, count, shown)


def _judge_order(layers: tuple[int, ...], count: int, shown: str) -> Verdict:
    doubts = []
    if len(set(layers)) != len(layers):
        doubts.append("a layer is named twice")
    if list(layers) != sorted(layers):
        doubts.append("the order is not ascending")
    if layers[-1] != count - 1:
        doubts.append(f"the last entry is {layers[-1]}, the model's last layer {count - 1}")
    saw = f"layers {shown} of {count}"
    if not doubts:
        return CHECK.verdict("pass", f"{saw}; the last one is the verifier's state")
    return CHECK.verdict(
        "warn",
        f"{saw}: {'; '.join(doubts)}",
        f"{_CONVENTION} A trainer takes the last entry as the verifier's last state "
        "and joins the others in the order in which they stand.",
        f"If this is not meant: ascending, each once, ending in {count - 1}.",
    )


CHECK = Check(
    id="layers",
    title="Layers in range",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="The number of layers stands in the model's config.json, which was not read.",
    silence_todo="Mend the check on the model first.",
)
