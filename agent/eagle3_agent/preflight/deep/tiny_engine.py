"""Check ``tiny-engine``: a tiny random model through the run's own worker, and its states verified.

The model has the checkpoint's architecture and the run's ranks.  It is built, run and verified by
the worker's own commands, each a process of its own, in a folder that is gone afterwards.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from eagle3_agent import runs
from eagle3_agent.preflight.check import Ask, Check, Facts, Probe, only_deep
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.events import Failure, Progress, Stage
from eagle3_agent.protocol.values import EngineName, Profile, Verdict, VerifyReport
from eagle3_agent.runs import RunFolder, RunRecord

from . import aim, exercise, steps
from .aim import Aim
from .keeper import Command, Ended, Keeper

#: Seconds for each step.  Eight ranks import vLLM eight times; the reference runs on the CPU.
BUILDING, RUNNING, VERIFYING = 60.0, 180.0, 90.0

#: The first layer says little: two in the middle and at the end.
_LAYERS = (1, 3)
_LENGTH = 256

#: Share of a GPU's memory that vLLM may take: the weights are a few MB.
_SHARE = 0.25
_SAMPLES = 4


@dataclass(frozen=True)
class Built:
    """What ``worker exercise model`` writes."""

    phase: str = ""
    problem: str = ""
    made: str = ""
    """The tiny model's class and model_type."""
    instead: str = ""
    """Why it is none of the checkpoint's family; empty when it is."""
    dtype: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float


@dataclass(frozen=True)
class EngineFacts:
    refused: str = ""
    engine: str = ""
    asked: str = ""
    """The profile's engine where another one was run in its place."""
    ranks: int = 1
    device: str = ""
    built: Built = Built()
    failed: str = ""
    """The step that failed: ``build``, ``run`` or ``verify``."""
    ended: str = ""
    slow: bool = False
    """It was ended for its time."""
    error: str = ""
    """What it said."""
    phases: tuple[Phase, ...] = ()
    samples: int = 0
    ok: bool = False
    """Every file is whole, and every recomputed layer of every sample agrees."""
    verdict: str = ""
    """The verification's own sentence."""
    worst: float | None = None
    """Largest median error of a layer, relative."""
    tolerance: float = 0.0
    faults: tuple[str, ...] = ()


def perform(keeper: Keeper, ask: Ask) -> EngineFacts:
    cpu = aim.environment(ask.profile, "")
    asked = {"profile": ask.profile, "folder": str(keeper.scratch), "rows": _SAMPLES}
    build = steps.exercise(keeper, ask.profile, "model", "model", asked, cpu, BUILDING)
    with aim.in_turn(keeper, ask) as found:
        why = _why_not(found)
        if why:
            return EngineFacts(why, found.engine)
        (ended,) = keeper.run([build])
        facts = EngineFacts(
            engine=played(found.engine),
            asked=found.engine if played(found.engine) != found.engine else "",
            ranks=found.ranks,
            device="the CPU" if found.cpu else plural(len(found.gpus), "GPU"),
            built=steps.read(keeper, ended, Built) or Built(),
            phases=(Phase("build", round(ended.seconds, 1)),),
        )
        if ended.status != 0:
            return _failed(facts, "build", ended, facts.built.problem)
        return _run(keeper, ask.profile, found, facts, cpu)


def played(chosen: EngineName) -> EngineName:
    """The engine to exercise: a user's script names its own model, its library stands in for it."""
    return "speculators" if chosen == "script" else chosen


def _why_not(found: Aim) -> str:
    if found.engine == "auto":
        return "no engine is chosen: the interpreter fits none"
    if found.cpu:
        run = aim.claimed().get("cpu", "")
        return f"run {show(run, 40)} goes on and has the CPU" if run else ""
    if found.refused or found.left_out:
        return found.refused or listed(found.left_out, 4)
    if not found.whole:
        return f"{plural(found.ranks, 'rank')} and {plural(len(found.gpus), 'GPU')} in sight"
    return ""


def _run(
    keeper: Keeper, profile: Profile, found: Aim, facts: EngineFacts, cpu: dict[str, str]
) -> EngineFacts:
    chosen = played(found.engine)
    folder = _make_run(keeper, profile, chosen)
    env = dict(cpu) if found.cpu else aim.environment(profile, None)
    argv = [profile.host.python, "-m", "eagle3_agent.worker", "run", str(folder.path)]
    (ended,) = keeper.run([Command("run", argv, env, RUNNING)])
    facts = replace(facts, phases=facts.phases + _phases(folder), samples=_done(folder))
    if ended.status != 0:
        return _failed(facts, "run", ended, _failure(folder))
    report = steps.report_of(keeper, "verify")
    argv = [*argv[:3], "verify", str(folder.path), "--report", str(report)]
    argv += ["--samples", str(_SAMPLES), "--dtype", "float32", "--seed", "1"]
    (ended,) = keeper.run([Command("verify", argv, cpu, VERIFYING)])
    facts = replace(facts, phases=(*facts.phases, Phase("verify", round(ended.seconds, 1))))
    read = steps.read(keeper, ended, VerifyReport)
    if ended.status != 0 or read is None:
        return _failed(facts, "verify", ended, "")
    return _verified(facts, read)


def _make_run(keeper: Keeper, profile: Profile, chosen: EngineName) -> RunFolder:
    """A run's folder as the agent makes it, out of the way of all real ones."""
    folder = RunFolder(keeper.scratch / "run")
    folder.path.mkdir(mode=0o700)
    record = RunRecord(
        format=runs.FORMAT,
        run="exercise",
        number=0,
        attempt=1,
        created=time.time(),
        host=os.uname().nodename,
        profile=tiny(profile, str(keeper.scratch), chosen),
        engine=chosen,
    )
    runs.write_value(folder.path / "run.json", record, durable=False)
    return folder


def tiny(profile: Profile, scratch: str, chosen: EngineName) -> Profile:
    """The profile with a tiny model, its rows and an output folder of its own; pure."""
    model, engine = profile.model, profile.engine
    return replace(
        profile,
        model=replace(
            model,
            path=f"{scratch}/model",
            max_model_len=_LENGTH,
            gpu_memory_utilization=min(model.gpu_memory_utilization, _SHARE),
            trust_remote_code=False,  # it holds no code
        ),
        capture=replace(profile.capture, layers=_LAYERS),
        data=replace(
            profile.data, path=f"{scratch}/rows.jsonl", max_samples=None, seq_length=_LENGTH
        ),
        output=replace(profile.output, dir=f"{scratch}/out", buffer_bytes=64 << 20),
        engine=replace(engine, name=chosen, script=None, args=()),
    )


def _events(folder: RunFolder) -> list[object]:
    try:
        return [event for _, event in folder.read_events()]
    except (OSError, ProtocolError):
        return []


def _phases(folder: RunFolder) -> tuple[Phase, ...]:
    """Seconds of the run's own stages, the last one to the end or to its failure."""
    began: dict[str, float] = {}
    found = []
    for event in _events(folder):
        if isinstance(event, Stage):
            if event.status == "start":
                began[event.name] = event.t
            elif event.name in began and event.name != "done":
                found.append(Phase(event.name, round(event.t - began[event.name], 1)))
    return tuple(found)


def _done(folder: RunFolder) -> int:
    return max((e.done for e in _events(folder) if isinstance(e, Progress)), default=0)


def _failure(folder: RunFolder) -> str:
    failures = [e.error for e in _events(folder) if isinstance(e, Failure)]
    if not failures:
        return ""
    error = failures[0]
    at = f" at {error.where.file}:{error.where.line}" if error.where else ""
    return f"{error.type}: {error.message}"[:600] + at


def _failed(facts: EngineFacts, step: str, ended: Ended, error: str) -> EngineFacts:
    words = error or "\n".join(steps.last_words(ended, 3))
    return replace(
        facts, failed=step, ended=steps.how(ended), slow=ended.status is None, error=words[:1000]
    )


def _verified(facts: EngineFacts, report: VerifyReport) -> EngineFacts:
    errors = [c.worst_relative_error for c in report.checked]
    return replace(
        facts,
        ok=report.ok and len(report.checked) > 0,
        verdict=report.verdict,
        worst=max((e for e in errors if e is not None), default=None),
        tolerance=report.tolerance,
        faults=tuple(f"sample {c.index}: {c.why}" for c in report.checked if not c.ok)[:3],
    )


# ------------------------------------------------------------------ the verdict


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.refused:
        return CHECK.verdict("skip", f"nothing was exercised: {seen.refused}")
    saw = _saw(seen)
    if seen.failed == "build" or seen.failed == "verify":
        what = "could not be built" if seen.failed == "build" else "could not be verified"
        return CHECK.verdict(
            "warn",
            f"{saw}\nthe tiny model {what}: {seen.ended}: {show(seen.error, 500)}",
            "Nothing is known of the engine's states.",
            "Run a few samples (data.max_samples = 4), and verify them before the long run.",
        )
    if seen.failed and seen.slow and seen.samples:
        return CHECK.verdict(
            "warn",
            f"{saw}\nthe run {seen.ended}: {show(seen.error, 600)}",
            "Samples came, and then it was too slow to close, or hung there: they were not "
            "verified.",
            "Run a few samples (data.max_samples = 4), and verify them before the long run.",
        )
    if seen.failed:
        return CHECK.verdict(
            "block",
            f"{saw}\nthe run {seen.ended}: {show(seen.error, 600)}",
            "The same engine, libraries and ranks load the real model: what fails here in a minute "
            "fails there after the load.",
            "Read the line above; the table of errors names most, and compat which patches bear on "
            "this engine.",
        )
    if not seen.ok:
        return CHECK.verdict(
            "block",
            f"{saw}\n{show(seen.verdict, 300)}: {show('; '.join(seen.faults), 600)}",
            "The engine gives other states than transformers for the same weights.",
            "Do not trust its data: run compat, and try another engine (engine.name).",
        )
    if seen.built.instead:
        return CHECK.verdict(
            "warn",
            f"{saw}; {_agree(seen)}",
            "The engine is right on another architecture than the checkpoint's: of its own, "
            "nothing is known.",
            "Run a few samples (data.max_samples = 4), and verify them before the long run.",
        )
    return CHECK.verdict("pass", f"{saw}; {_agree(seen)}")


def _agree(seen: EngineFacts) -> str:
    worst = "" if seen.worst is None else f", off by {seen.worst:.2g} of {seen.tolerance:.2g}"
    return f"{show(seen.verdict, 200)} (transformers, float32, CPU{worst} allowed)"


def _saw(seen: EngineFacts) -> str:
    instead = f" in place of {seen.asked}, whose own file was not run" if seen.asked else ""
    model = show(seen.built.made, 80) or "no model"
    told = f"engine {seen.engine}{instead}, {plural(seen.ranks, 'rank')} on {seen.device}: {model}"
    if seen.built.instead:
        told += f", as the model's own could not be made ({show(seen.built.instead, 200)})"
    times = ", ".join(f"{p.name} {p.seconds:.1f} s" for p in seen.phases)
    return f"{told}, {show(seen.built.dtype, 20)}; {plural(seen.samples, 'sample')}; {times}"


def _collect(ask: Ask) -> EngineFacts:
    return exercise.collect("tiny_engine", EngineFacts, ask)


PROBE = Probe(
    "tiny-engine",
    EngineFacts,
    _collect,
    timeout=exercise.TURN + BUILDING + RUNNING + VERIFYING + exercise.CLEANING,
)

CHECK = Check(
    id="tiny-engine",
    title="Tiny model extracts right",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Nothing is known of the engine at work.",
    silence_todo="Run a few samples (data.max_samples = 4), and verify them.",
    applies=only_deep,
)
