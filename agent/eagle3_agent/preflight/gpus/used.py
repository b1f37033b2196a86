"""Which GPUs the run will use, and how a text names many at once; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eagle3_agent.nvml_facts import Health
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.protocol.values import Gpu, Profile

from .gpu_facts import PROBE, Selection, select

NO_GPU = "the run would use no GPU"


def seen_by_run(facts: Facts) -> Selection:
    """The GPUs (or MIG slices) that the run's environment lets CUDA see."""
    seen = facts.get(PROBE)
    return select(seen.visible, seen.sample.gpus, seen.health)


def used_by_run(facts: Facts, profile: Profile) -> Selection:
    """The GPUs that the run may use: the first tensor_parallel_size of those that it sees."""
    if cpu_build(facts) and engine.resolve(facts, profile) != "transformers":
        return Selection(())
    selection = seen_by_run(facts)
    if engine.resolve(facts, profile) == "transformers":
        return selection  # it takes the one with most free memory
    return Selection(selection.gpus[: profile.model.tensor_parallel_size], selection.unknown)


def with_health(facts: Facts, profile: Profile) -> list[tuple[Gpu, Health]]:
    """The run's GPUs that answer; a slice comes with the health of the GPU that it is part of."""
    seen = facts.get(PROBE)
    found = []
    for gpu in used_by_run(facts, profile).gpus:
        health = seen.health_of(gpu.index)
        if health is not None and not gpu.error:
            found.append((gpu, health))
    return found


def cpu_build(facts: Facts) -> bool:
    """Whether the interpreter's vLLM computes on the CPU."""
    seen = facts.maybe(interpreter_facts.PROBE)
    return seen is not None and engine.is_cpu_build(seen.dists)


def numbers(indices: Iterable[int]) -> str:
    """``0-6, 9``"""
    runs: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def folded(said: Sequence[tuple[int, str]]) -> list[str]:
    """A line for each text, with all GPUs that it is said of: ``GPU 0-6: in use``."""
    by_text: dict[str, list[int]] = {}
    for index, text in said:
        by_text.setdefault(text, []).append(index)
    ordered = sorted(by_text.items(), key=lambda pair: min(pair[1]))
    return [f"GPU {numbers(indices)}: {text}" for text, indices in ordered]
