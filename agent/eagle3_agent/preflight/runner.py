"""Runs probes side by side, each in its own process, and lets the checks judge.

A probe that hangs, crashes or floods costs only the checks that need it.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.values import Profile, Report, Verdict

from . import bounded, catalogue, engine, environment
from .check import Ask, Check, Facts, Outcome, Probe, Progress
from .text import show

#: The folder that holds ``eagle3_agent``.
ROOT = Path(__file__).resolve().parents[2]

#: -I: neither the working folder nor the user's PYTHON* variables reach a probe.
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eagle3_agent.preflight.probing import child; child(sys.argv[2], sys.argv[3])"
)
#: Seconds past a probe's own timeout before the thread that waits for it is given up.
_SLACK = 2.0

Tell = Callable[[Progress], None]


@dataclass(frozen=True)
class _Answer:
    probe: Probe[Any]
    value: Any
    silent: str
    seconds: float


def run(profile: Profile, deep: bool = False, tell: Tell | None = None) -> Outcome:
    """The whole preflight.  Blocks for as long as the slowest probe, at most its timeout.

    ``tell`` hears how far it is: when the probes are started, and as each one answers.
    """
    began = time.monotonic()
    ask = Ask(profile, deep)
    checks = catalogue.for_ask(ask)
    facts, seconds = gather(probes_of(checks), ask, tell)
    report = Report(
        verdicts=judge(checks, facts, profile, seconds),
        seconds=round(time.monotonic() - began, 3),
        at=time.time(),
    )
    return Outcome(report, environment.fingerprint(facts), engine.resolve(facts, profile))


def probes_of(checks: Iterable[Check]) -> tuple[Probe[Any], ...]:
    """Every probe that the checks name, once."""
    by_name = {p.name: p for check in checks for p in (*check.needs, *check.wants)}
    return tuple(by_name.values())


def judge(
    checks: Sequence[Check], facts: Facts, profile: Profile, seconds: dict[str, float]
) -> tuple[Verdict, ...]:
    """Verdicts in the checks' order; each takes as long as its slowest needed probe took."""
    return tuple(
        replace(
            check.decide(facts, profile),
            seconds=round(max((seconds.get(p.name, 0.0) for p in check.needs), default=0.0), 3),
        )
        for check in checks
    )


def gather(
    probes: Sequence[Probe[Any]], ask: Ask, tell: Tell | None = None
) -> tuple[Facts, dict[str, float]]:
    """Run the probes at the same time; facts, and the seconds that each took."""
    if ask.deep:
        probes = [replace(p, timeout=p.deep_timeout or p.timeout) for p in probes]
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    request = dumps(ask).encode("ascii")
    began = time.monotonic()
    for probe in probes:
        threading.Thread(
            target=lambda p=probe: answers.put(_run_probe(p, request)),
            name=f"preflight-{probe.name}",
            daemon=True,  # a thread stuck in the kernel must not keep the agent from leaving
        ).start()
    waiting = {probe.name: probe for probe in probes}
    found: dict[str, Any] = {}
    silent: dict[str, str] = {}
    seconds: dict[str, float] = {}
    deadline = began + max((p.timeout for p in probes), default=0.0) + _SLACK
    while waiting:
        if tell is not None:
            tell(Progress(len(probes) - len(waiting), len(probes), tuple(waiting)))
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        name = answer.probe.name
        del waiting[name]
        seconds[name] = answer.seconds
        if answer.silent:
            silent[name] = answer.silent
        else:
            found[name] = answer.value
    for name, probe in waiting.items():
        silent[name] = f"did not answer within {probe.timeout:g} s"
        seconds[name] = time.monotonic() - began
    return Facts(found, silent), seconds


def _run_probe(probe: Probe[Any], request: bytes) -> _Answer:
    began = time.monotonic()
    value: Any = None
    silent = ""
    try:
        argv = [sys.executable, "-I", "-c", _CHILD, str(ROOT), probe.collect.__module__, probe.name]
        value, silent = _read(probe, bounded.run(argv, timeout=probe.timeout, stdin=request))
    except Exception as error:
        silent = f"its probe could not be run: {show(f'{type(error).__name__}: {error}')}"
    return _Answer(probe, value, silent, time.monotonic() - began)


def _read(probe: Probe[Any], answer: bounded.Answer) -> tuple[Any, str]:
    """(facts, "") or (None, why there are none)."""
    if answer.cut == "time":
        return None, f"did not answer within {probe.timeout:g} s"
    if answer.cut:
        return None, f"its probe wrote more than {bounded.OUTPUT_LIMIT} bytes"
    if answer.status != 0:
        words = show(answer.last_words()) or "without a word"
        return None, f"its probe ended with status {answer.status}: {words}"
    try:
        return from_json(probe.facts, json.loads(answer.stdout)), ""
    except (ValueError, RecursionError, ProtocolError) as error:
        return None, f"its probe's answer cannot be read: {show(str(error))}"
