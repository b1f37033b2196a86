"""Check ``quantization``: what form the weights are in, and whether vLLM and this GPU take it.

Whether the installed vLLM registers the method is asked of that vLLM itself (``compat``); here
stand the rules of 0.16.0, see ``quantised``.
"""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.engine import resolve
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.text import show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import quantised
from .capability import PROBE as CAPABILITY
from .capability import least
from .model_facts import PROBE as MODEL
from .model_facts import ModelFacts
from .quantised import Quantisation, Rule

_PACKED = ("I32", "U8", "I8", "F8_E4M3", "F8_E5M2", "I64", "U32")


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(MODEL)
    if seen.problem or seen.config_problem:
        return CHECK.verdict("skip", "config.json was not read, so its quantisation is not known")
    found = seen.quantisation
    if not found.method:
        return _plain(seen)
    saw = _form(found, seen)
    engine = resolve(facts, profile)
    if engine == "transformers":
        return _transformers(saw, found, facts)
    rule = quantised.rule(found)
    if rule is None:
        return CHECK.verdict(
            "warn",
            f"{saw}; vLLM 0.16 has no method of that name",
            "An unknown method ends the load before any weight is read.",
            "Look for a vLLM that knows it, or for another form of this checkpoint.",
        )
    if rule.deprecated:
        return CHECK.verdict(
            "warn",
            f"{saw}; vLLM 0.16 counts it as deprecated",
            "Without --allow-deprecated-quantization, which a run does not pass, it is refused.",
            "Take another form of this checkpoint.",
        )
    return _on_gpu(saw, rule, facts, profile)


def _plain(seen: ModelFacts) -> Verdict:
    packed = sum(count for d, count in seen.dtypes.items() if d in _PACKED)
    total = sum(seen.dtypes.values())
    if 2 * packed > total > 0:
        return CHECK.verdict(
            "warn",
            f"config.json names no quantisation, yet {size(packed)} of {size(total)} of the "
            "tensors are integers or 8-bit floats",
            "Packed weights that are read as plain ones fail by their shape, or compute nonsense.",
            "Copy the config.json that belongs to these weights.",
        )
    return CHECK.verdict("pass", "not quantised")


def _form(found: Quantisation, seen: ModelFacts) -> str:
    saw = show(found.method, 60)
    saw += f": {show(found.form, 200)}" if found.form else ""
    if found.activations:
        saw += f"; activations {show(found.activations, 60)}"
    total, packed = (
        sum(seen.dtypes.values()),
        sum(count for d, count in seen.dtypes.items() if d in _PACKED),
    )
    return f"{saw}; {size(packed)} of {size(total)} packed" if packed else saw


def _transformers(saw: str, found: Quantisation, facts: Facts) -> Verdict:
    seen = facts.maybe(INTERPRETER)
    if found.method == "compressed-tensors" and seen is not None and not seen.problem:
        if "compressed-tensors" not in seen.dists:
            return CHECK.verdict(
                "block",
                f"{saw}; the interpreter has no compressed-tensors",
                "transformers cannot read these weights without that package.",
                "pip install compressed-tensors in the interpreter that host.python names.",
            )
        version = show(seen.dists["compressed-tensors"], 30)
        return CHECK.verdict("pass", f"{saw}; read by compressed-tensors {version}")
    return CHECK.verdict(
        "warn",
        f"{saw}; whether transformers can read it here cannot be told without loading",
        "Most methods need a package of their own beside transformers, and some a GPU.",
        "Try from_pretrained on that folder, or use the engine vllm.",
    )


def _on_gpu(saw: str, rule: Rule, facts: Facts, profile: Profile) -> Verdict:
    needed = f"{rule.capability // 10}.{rule.capability % 10}"
    gpu = least(facts, profile)
    if gpu is None:
        return CHECK.verdict(
            "pass", f"{saw}; vLLM 0.16 asks for compute capability {needed}, no GPU told its own"
        )
    if gpu.capability < rule.capability:
        return CHECK.verdict(
            "block",
            f"{saw}; {gpu.words()}, vLLM 0.16 asks for {needed}",
            "The engine's config refuses the method on this GPU before the load.",
            "Use a newer GPU, or another form of this checkpoint.",
        )
    return CHECK.verdict("pass", f"{saw}; {gpu.words()} (asked: {needed})")


CHECK = Check(
    id="quantization",
    title="Quantised weights supported",
    needs=(MODEL,),
    wants=(CAPABILITY, GPUS, INTERPRETER),
    judge=judge,
    silence="warn",
    silence_why="The quantisation stands in the model's config.json, which was not read.",
    silence_todo="Mend the check on the model first.",
)
