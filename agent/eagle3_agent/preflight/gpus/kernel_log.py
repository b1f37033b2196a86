"""Check ``gpu-kernel-log``: what the driver wrote about GPUs into the kernel log since boot."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import ago, number, show
from eagle3_agent.protocol.values import Profile, Verdict

from . import xids
from .gpu_facts import PROBE as GPUS
from .kernel_log_facts import PROBE, KernelLogFacts, XidLine
from .used import used_by_run

_SHOWN = 8

#: Seconds between boot and the first line of a ring buffer that lost none.
_EARLY = 60.0


@dataclass
class _Group:
    """Xids of one number on one device."""

    where: str
    code: int
    switch: bool
    then: xids.Then
    text: str
    count: int = 0
    last: float | None = None
    program: str = ""


def judge(facts: Facts, profile: Profile) -> Verdict:
    log = facts.get(PROBE)
    gpus = facts.maybe(GPUS)
    if not log.source:
        return CHECK.verdict(
            "skip",
            f"the kernel log cannot be read: {show(log.problem, 300)}",
            todo="As root: dmesg | grep -E 'NVRM|SXid'",
        )
    if not log.lines:
        if gpus is not None and not gpus.sample.gpus:
            return CHECK.verdict("skip", "no GPU, and no Xid in the kernel log")
        return CHECK.verdict("pass", f"no Xid in {_span(log)}")
    groups = _groups(facts, profile, log)
    lines = [_line(group, log.now) for group in groups]
    rest = len(lines) - _SHOWN
    if rest > 0:
        lines = [*lines[:_SHOWN], f"and {rest} kinds more"]
    left_out = f", {number(log.left_out)} older ones not looked at" if log.left_out else ""
    kinds: list[xids.Then] = [t for t in xids.ORDER if any(g.then == t for g in groups)]
    return CHECK.verdict(
        "warn",
        "\n".join([*lines, f"(from {_span(log)}{left_out})"]),
        " ".join(xids.why(then) for then in kinds[:2]),
        "\n".join(xids.todo(then) for then in kinds[:2]),
    )


def _groups(facts: Facts, profile: Profile, log: KernelLogFacts) -> list[_Group]:
    """Of the run's GPUs first, then by what they ask for, then the newest."""
    names, mine = _devices(facts, profile)
    found: dict[tuple[str, int, bool, str], _Group] = {}
    for line in log.lines:
        known = _meaning(line)
        key = (line.pci, line.code, line.switch, known.text)
        where = names.get(line.pci, f"{'NVSwitch' if line.switch else 'GPU'} at {line.pci}")
        group = found.setdefault(key, _Group(where, line.code, line.switch, known.then, known.text))
        group.count += 1
        group.last = line.at if line.at is not None else group.last
        group.program = line.program or group.program
    return sorted(
        found.values(),
        key=lambda g: (g.where not in mine, xids.ORDER.index(g.then), -(g.last or 0.0)),
    )


def _meaning(line: XidLine) -> xids.Xid:
    if line.switch:
        severity = "fatal" if line.rest.lower().startswith("fatal") else "non-fatal"
        return xids.Xid(f"NVSwitch error, {severity}", "links")
    return xids.meaning(line.code, line.rest)


def _devices(facts: Facts, profile: Profile) -> tuple[dict[str, str], set[str]]:
    """(PCI address -> name, names of the run's GPUs)"""
    seen = facts.maybe(GPUS)
    if seen is None:
        return {}, set()
    used = {gpu.index for gpu in used_by_run(facts, profile).gpus}
    names, mine = {}, set()
    for health in seen.health:
        if health.pci:
            own = health.index in used
            names[health.pci] = f"GPU {health.index}" + ("" if own else " (not the run's)")
            if own:
                mine.add(names[health.pci])
    return names, mine


def _line(group: _Group, now: float) -> str:
    times = f", {number(group.count)} times, last" if group.count > 1 else ","
    by = f", of {show(group.program, 40)}" if group.program else ""
    kind = "SXid" if group.switch else "Xid"
    return f"{group.where}: {kind} {group.code}, {group.text}{by}{times} {_ago(group.last, now)}"


def _ago(at: float | None, now: float) -> str:
    if at is None:
        return "at an unknown time"
    return f"{ago(now - at)} ago"


def _span(log: KernelLogFacts) -> str:
    """The source, and how far back it goes."""
    if log.boot is None:
        return log.source
    if log.since is not None and log.since - log.boot > _EARLY:
        return (
            f"{log.source}, which begins {_ago(log.since, log.now)}; "
            f"the boot was {_ago(log.boot, log.now)}"
        )
    return f"{log.source} since boot {_ago(log.boot, log.now)}"


CHECK = Check(
    id="gpu-kernel-log",
    title="Kernel log free of GPU errors",
    needs=(PROBE,),
    wants=(GPUS, interpreter_facts.PROBE),
    judge=judge,
    silence="warn",
    silence_why="The kernel log tells of GPUs that failed before.",
    silence_todo="As root: dmesg | grep -E 'NVRM|SXid'",
)
