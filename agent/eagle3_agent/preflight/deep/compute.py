"""Check ``gpu-compute``: each GPU keeps what is written, multiplies exactly, and as fast as others.

A process for each GPU, side by side, as a run has them: what hangs or fails costs its own GPU's
verdict alone.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Check, Facts, Probe, only_deep
from eagle3_agent.preflight.text import listed, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import aim, exercise, steps
from .keeper import Ended, Keeper

#: Seconds for one GPU's process: half of it is the import of torch from a slow disk.
TIMEOUT = 75.0

#: A GPU slower than the median of its kind by more than this is named.
SLOW = 0.15


@dataclass(frozen=True)
class Reported:
    """What ``worker exercise compute`` writes."""

    phase: str = ""
    problem: str = ""
    bytes: int = 0
    """Of memory written and compared."""
    bad_words: int | None = None
    wrong: int | None = None
    """Elements of the first product that are not exact."""
    wrong_late: int | None = None
    """The same of the last, after seconds at full load."""
    size: int = 0
    dtype: str = ""
    tflops: float | None = None
    slowest_tflops: float | None = None


@dataclass(frozen=True)
class Exercised:
    """One GPU."""

    index: int
    name: str
    seconds: float
    ended: str
    """How its process ended, in words; empty when it came to its end."""
    report: Reported = Reported()
    words: str = ""


@dataclass(frozen=True)
class ComputeFacts:
    refused: str = ""
    left_out: tuple[str, ...] = ()
    gpus: tuple[Exercised, ...] = ()


def perform(keeper: Keeper, ask: Ask) -> ComputeFacts:
    with aim.in_turn(keeper, ask) as found:
        if found.refused:
            return ComputeFacts(found.refused)
        commands = [
            steps.exercise(
                keeper,
                ask.profile,
                "compute",
                f"gpu{gpu.index}",
                {"device": "cuda"},
                aim.environment(ask.profile, gpu.uuid),
                TIMEOUT,
            )
            for gpu in found.gpus
        ]
        ended = keeper.run(commands)
        gpus = [_exercised(keeper, g.index, g.name, e) for g, e in zip(found.gpus, ended)]
        return ComputeFacts("", found.left_out, tuple(gpus))


def _exercised(keeper: Keeper, index: int, name: str, ended: Ended) -> Exercised:
    report = steps.read(keeper, ended, Reported) or Reported()
    words = " ".join(steps.last_words(ended)) if steps.how(ended) else ""
    return Exercised(index, name, round(ended.seconds, 2), steps.how(ended), report, words)


# ------------------------------------------------------------------ the verdict


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.refused:
        return CHECK.verdict("skip", f"nothing was exercised: {seen.refused}")
    lines = [_line(gpu) for gpu in seen.gpus] + [f"not exercised: {t}" for t in seen.left_out]
    saw = "\n".join(lines)
    wrong = [g for g in seen.gpus if _wrong(g)]
    if wrong:
        names = listed([f"GPU {g.index}" for g in wrong], 8)
        return CHECK.verdict(
            "block",
            saw,
            f"{names} gives wrong bytes or numbers: every sample that it touches is wrong, "
            "and no error says so.",
            "Leave it out with CUDA_VISIBLE_DEVICES in host.env, and have it looked at: "
            "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid",
        )
    if all(_no_device(g) for g in seen.gpus):
        return CHECK.verdict(
            "warn",
            saw,
            "torch cannot use these GPUs: the run would not start on them.",
            f"See it by hand: {profile.host.python} -c 'import torch; torch.zeros(1).cuda()'",
        )
    failed = [g for g in seen.gpus if g.ended]
    if failed:
        names = listed([f"GPU {g.index}" for g in failed], 8)
        return CHECK.verdict(
            "block",
            saw,
            f"{names} fails or hangs at work that takes seconds: the run's rank on it would too.",
            "Leave it out with CUDA_VISIBLE_DEVICES in host.env; look with: dmesg | grep -i -e xid "
            "-e nvrm",
        )
    slow = slower(seen.gpus)
    if slow:
        return CHECK.verdict(
            "warn",
            f"{saw}\nslower than the median by more than {100 * SLOW:.0f} %: {listed(slow, 8)}",
            "All ranks wait for the slowest at every layer. It is throttled, limited in power, or "
            "shared.",
            "Look at: nvidia-smi -q -d PERFORMANCE,POWER,CLOCK",
        )
    return CHECK.verdict("warn" if seen.left_out else "pass", saw, *_left_out(seen))


def _left_out(seen: ComputeFacts) -> tuple[str, str]:
    if not seen.left_out:
        return "", ""
    return "Nothing is known of a GPU that was not exercised.", "Free it, and check again."


def _wrong(gpu: Exercised) -> bool:
    report = gpu.report
    return bool(report.bad_words or report.wrong or report.wrong_late)


def _no_device(gpu: Exercised) -> bool:
    return bool(gpu.ended) and gpu.report.problem.startswith("NoDevice")


def slower(gpus: tuple[Exercised, ...]) -> list[str]:
    """Those that are out of line with others of their name and dtype, with the figures."""
    found = []
    for kind in sorted({(g.name, g.report.dtype) for g in gpus}):
        alike = [g for g in gpus if (g.name, g.report.dtype) == kind and g.report.tflops]
        if len(alike) < 2:
            continue
        middle = statistics.median(g.report.tflops or 0.0 for g in alike)
        for gpu in alike:
            speed = gpu.report.tflops or 0.0
            if speed < middle * (1 - SLOW):
                found.append(
                    f"GPU {gpu.index} ({speed:.0f} of {middle:.0f} TFLOP/s, "
                    f"{100 * (1 - speed / middle):.0f} % less)"
                )
    return found


def _line(gpu: Exercised) -> str:
    report = gpu.report
    name = f"GPU {gpu.index}"
    told = []
    if report.bad_words is not None:
        bad = f"{plural(report.bad_words, 'word')} of it wrong" if report.bad_words else "all right"
        told.append(f"{size(report.bytes)} of memory {bad}")
    if report.wrong is not None:
        count = max(report.wrong, report.wrong_late or 0)
        right = f"{plural(count, 'element')} wrong" if count else "exact"
        told.append(f"{show(report.dtype, 20)} product {right}")
    if report.tflops is not None:
        told.append(f"{report.tflops:.3g} TFLOP/s")
    if gpu.ended:
        at = f" at: {show(report.phase, 60)}" if report.phase else ""
        why = show(report.problem, 300) or gpu.words
        told.append(f"its process {gpu.ended}{at}{f' ({why})' if why else ''}")
    return f"{name}: {', '.join(told)}; {gpu.seconds:.0f} s"


def _collect(ask: Ask) -> ComputeFacts:
    return exercise.collect("compute", ComputeFacts, ask)


PROBE = Probe(
    "gpu-compute",
    ComputeFacts,
    _collect,
    timeout=exercise.TURN + TIMEOUT + exercise.CLEANING,
)

CHECK = Check(
    id="gpu-compute",
    title="GPUs compute right",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Nothing is known of how the GPUs compute.",
    silence_todo="Run it again, or look for a process in state D: ps -eo pid,stat,comm | grep ' D'",
    applies=only_deep,
)
