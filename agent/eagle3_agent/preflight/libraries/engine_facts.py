"""The run's engine made without weights, in the profile's interpreter: measured, or remembered.

Importing vLLM takes seconds to a minute, so a report of an engine that was made stays valid as
long as nothing that it depends on has changed.  What failed is measured anew each time.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace

from eagle3_agent.enginereport import EngineReport
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.protocol import ProtocolError, dumps, from_json

from . import identity, interpreter_facts, remembered, worker

#: Seconds for the worker, and those of a deep preflight: vLLM from a cold network disk takes most
#: of them.
TIMEOUT = 150.0
DEEP_TIMEOUT = 600.0


@dataclass(frozen=True)
class EngineFacts:
    engine: str
    """The engine that would run; the rest is empty when it runs without vLLM."""
    report: EngineReport | None = None
    """As far as it came."""
    problem: str = ""
    """Why there is no report, in words."""
    end: str = ""
    """How the worker ended where it did not end well: ``SIGSEGV``, ``status 3``, ``time``."""
    words: str = ""
    """What it said last."""
    age: float | None = None
    """Seconds since it was measured; None for now."""
    seconds: float = 0.0
    """What measuring took."""


def _collect(ask: Ask) -> EngineFacts:
    seen = interpreter_facts.ask(ask.profile)
    chosen = engine.choose(ask.profile.engine.name, seen)
    if chosen not in engine.ON_VLLM:
        return EngineFacts(chosen)
    if seen.problem:
        return EngineFacts(chosen, problem=f"the interpreter {seen.problem}")
    needed = ["vllm"] if chosen == "vllm" else ["vllm", "speculators"]
    missing = [n for n in needed if n not in seen.dists and not (n == "vllm" and _vllm(seen))]
    if missing:
        return EngineFacts(chosen, problem=f"{' and '.join(missing)} not installed there")
    named = replace(ask.profile.engine, name=chosen)
    asked = replace(ask, profile=replace(ask.profile, engine=named))
    return _measure(asked, identity.key("engine", asked.profile, seen, model=True))


def _vllm(seen: interpreter_facts.InterpreterFacts) -> bool:
    return bool(engine.vllm_dist(seen.dists))


def _measure(ask: Ask, key: str) -> EngineFacts:
    name = ask.profile.engine.name
    kept = None if ask.deep else remembered.recall(key, time.time())
    if kept is not None:
        try:
            return EngineFacts(name, from_json(EngineReport, kept[1]), age=kept[0])
        except ProtocolError:
            pass  # of another form: a miss
    began, at = time.monotonic(), time.time()
    heard = worker.call(ask.profile, "dry", DEEP_TIMEOUT if ask.deep else TIMEOUT)
    facts = EngineFacts(
        name,
        problem=f"the worker {heard.problem}" if heard.problem else "",
        end=heard.end,
        words=heard.words,
        seconds=round(time.monotonic() - began, 2),
    )
    if heard.report is None:
        return facts
    try:
        report = from_json(EngineReport, json.loads(heard.report))
    except (ValueError, RecursionError, ProtocolError) as error:
        return replace(facts, problem=f"the worker wrote a report that cannot be read: {error}")
    if _whole(report) and not heard.end:
        remembered.keep(key, at, json.loads(dumps(report)))
    return replace(facts, report=report)


def _whole(report: EngineReport) -> bool:
    """Worth keeping: everything was found, and nothing stands in the way."""
    found = report.capture
    return (
        report.step == "done"
        and report.resolved is not None
        and found is not None
        and not found.problem
        and not found.refusals
    )


PROBE = Probe(
    "engine",
    EngineFacts,
    _collect,
    timeout=interpreter_facts.TIMEOUT + TIMEOUT + 4,
    deep_timeout=interpreter_facts.TIMEOUT + DEEP_TIMEOUT + 4,
)
