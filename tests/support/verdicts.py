"""Preflight reports as the agent's own judges give them, over facts of a recorded host.

The host is that of ``clean_host`` while both GPUs were held; what else stands in the way is set
up here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from eagle3_agent.preflight import catalogue, runner
from eagle3_agent.preflight.check import Ask, Facts
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.model import model_facts
from eagle3_agent.preflight.output import output_facts
from eagle3_agent.preflight.running import process_facts
from eagle3_agent.protocol.values import Profile, Report

from . import clean_host, thirty
from .clean_host import GIB, idle_sample
from .recording import recorded

__all__ = ["blocked", "idle_sample", "judged", "many", "mended", "profile", "ready"]

_SECONDS = {
    "gpu": 0.603,
    "interpreter": 0.274,
    "processes": 0.267,
    "model": 0.236,
    "checkpoint": 0.241,
    "data": 0.352,
    "output": 0.214,
    "disk-speed": 0.394,
    "compat": 0.667,
}


def profile() -> Profile:
    return clean_host.profile()


def judged(facts: Facts, at: float) -> Report:
    """What every quick check says to that."""
    checks = catalogue.for_ask(Ask(profile()))
    return Report(runner.judge(checks, facts, profile(), _SECONDS), 0.671, at)


@cache
def blocked(at: float) -> Report:
    """A vLLM of no run that is kept holds the GPUs, a copied shard is one byte short, and the disk
    is nearly too small.

    The holders are those that NVML named while run 2 went on.
    """
    bad = model_facts.BadShard("model-00007-of-00009.safetensors", "is 1 byte too short")
    holders = tuple(
        process_facts.Seen(p.pid, p.start_time or 0, "vllm", "S", p.user, p.command, p.started)
        for gpu in clean_host.held_by_another().gpus
        for p in gpu.processes
    )
    changes: clean_host.Pairs = {
        gpu_facts.PROBE: clean_host.gpu_state(clean_host.held_by_another()),
        process_facts.PROBE: process_facts.ProcessFacts(holders, hidden=1),
        model_facts.PROBE: replace(clean_host.whole_model(), bad=(bad,), bad_count=1),
        output_facts.PROBE: clean_host.output(19.0 * GIB),
    }
    return judged(clean_host.facts(changes), at)


def many(at: float) -> Report:
    """Thirty checks: one blocks and offers two ways out, three warn, one offers a way out."""
    return Report(thirty.VERDICTS, 1.846, at)


def mended(at: float) -> Report:
    """The same after the service was stopped: nothing blocks."""
    return Report(
        tuple(thirty.CLEAN if v.check == "gpu-clean" else v for v in thirty.VERDICTS), 1.792, at
    )


def ready() -> Report:
    """The preflight that run 1 was started with, as it was kept."""
    report = recorded("0001").record.preflight
    assert report is not None
    return report
