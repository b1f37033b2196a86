"""Preflight reports as the agent's own judges give them, over facts of a recorded host.

The GPUs, the interpreter, the data and the patches are those of the H200 host
while run 2 held both GPUs; what else stands in the way is set up here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from eagle3_agent.distributions import DISTRIBUTIONS
from eagle3_agent.preflight import catalogue, runner
from eagle3_agent.preflight.check import Ask, Facts, known
from eagle3_agent.preflight.data import data_facts
from eagle3_agent.preflight.data.tally import Tally
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.libraries import compat, interpreter_facts
from eagle3_agent.preflight.model import model_facts
from eagle3_agent.preflight.output import output_facts
from eagle3_agent.preflight.running import process_facts
from eagle3_agent.protocol.values import HostSample, Profile, Report

from . import thirty
from .recording import busy_sample, recorded

GIB = 1024**3
_TOKENS = 574_565
_IDS = ("interpreter", "gpu-count", "gpu-clean", "leftovers", "model", "layers", "data", "output",
        "disk", "compat")  # fmt: skip
_SECONDS = {
    "gpu": 0.603,
    "interpreter": 0.274,
    "processes": 0.267,
    "model": 0.236,
    "data": 0.352,
    "output": 0.214,
    "compat": 0.667,
}


def profile() -> Profile:
    return recorded("0002").record.profile


def judged(facts: Facts, at: float) -> Report:
    """The verdicts of the checks that the scene is about."""
    checks = [c for c in catalogue.for_ask(Ask(profile())) if c.id in _IDS]
    return Report(runner.judge(checks, facts, profile(), _SECONDS), 0.671, at)


def _seen(sample: HostSample) -> HostSample:
    """The holders with the start times that /proc has of them: they can be told from others."""
    gpus = tuple(
        replace(gpu, processes=tuple(replace(p, start_time=914_000 + p.pid) for p in gpu.processes))
        for gpu in sample.gpus
    )
    return replace(sample, gpus=gpus)


@cache
def blocked(at: float) -> Report:
    """Run 2 holds the GPUs, a copied shard is one byte short, and the disk is nearly too small."""
    one = recorded("0002")
    environment = one.record.environment
    dists = {k: environment[k] for k in DISTRIBUTIONS if k in environment}
    findings = one.standing(float("inf")).patches
    bad = model_facts.BadShard("model-00007-of-00009.safetensors", "is 1 byte too short")
    tally = Tally(rows=500, input_ids=500, exact_tokens=_TOKENS, longest=2048)
    guarded = tuple(
        process_facts.Seen(p.pid, 1, "run", "S", p.user, p.command, p.started, "0002", True)
        for gpu in busy_sample().gpus
        for p in gpu.processes
    )
    asked = profile()
    return judged(
        known(
            (gpu_facts.PROBE, gpu_facts.GpuFacts(_seen(busy_sample()))),
            (
                interpreter_facts.PROBE,
                interpreter_facts.InterpreterFacts(
                    asked.host.python, python=environment["python"], dists=dists
                ),
            ),
            (process_facts.PROBE, process_facts.ProcessFacts(guarded, hidden=1)),
            (
                model_facts.PROBE,
                model_facts.ModelFacts(
                    asked.model.path,
                    model_type="llama",
                    architecture="LlamaForCausalLM",
                    layers=32,
                    hidden=4096,
                    vocab=128_256,
                    dtype="bfloat16",
                    shards=9,
                    bytes=14 * GIB,
                    bad=(bad,),
                    bad_count=1,
                    tokenizer=True,
                ),
            ),
            (
                data_facts.PROBE,
                data_facts.DataFacts(
                    asked.data.path,
                    kind="JSONL",
                    rows=500,
                    tally=tally,
                    tokens=_TOKENS,
                    tokens_exact=True,
                    tokens_from="counted input_ids",
                ),
            ),
            (
                output_facts.PROBE,
                output_facts.OutputFacts(
                    asked.output.dir, place="/data", write_seconds=0.001, free=int(19.0 * GIB)
                ),
            ),
            (
                compat.PROBE,
                compat.CompatFacts(
                    "speculators", compat.WorkerReport(dists, "3.12.3", findings=findings)
                ),
            ),
        ),
        at,
    )


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


def idle_sample() -> HostSample:
    """The host before its first run."""
    return recorded("0001").samples[0][0]
