"""Check ``others``: who else runs vLLM here or holds a GPU, and what would stop it.

vLLM is known by its library in a process's memory map, a holder by NVML.  How to stop it follows
from where it lives: a unit, a container, a batch job, or nothing but itself.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from eagle3_agent import cgroups
from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.actions.units import UnitFacts
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.text import listed, show, size
from eagle3_agent.protocol.values import Action, GpuProcess, Profile, Verdict

from .leftovers import SILENCE_TODO, SILENCE_WHY, hidden, line_of, target_of
from .process_facts import PROBE, Seen

_SHOWN = 8

#: Bytes of GPU memory below which a holder that is not vLLM is a display or a monitor.
_SMALL = 256 * 1024 * 1024


@dataclass(frozen=True)
class _Held:
    """What NVML says that one process holds."""

    gpus: tuple[int, ...] = ()
    bytes: int | None = 0
    """Over all of them; None where NVML does not say."""


@dataclass(frozen=True)
class _WayOut:
    """Processes that stop together, and how."""

    processes: list[Seen]
    todo: str
    action: Action | None = None


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    held = _held(facts)
    found = [p for p in seen.found if p.kind != "run"] + _unseen(facts, seen.found)
    found = [p for p in found if _counts(p, held)]
    tail = hidden(seen)
    if held is None:
        tail += "; NVML did not answer, so GPUs are known by memory maps alone"
    if seen.more:
        tail += f"; {seen.more} more were not looked at"
    if not found:
        told = f"nobody else runs vLLM or holds a GPU{tail}"
        if seen.more:
            return CHECK.verdict("warn", told, "Somebody could be among those.")
        if seen.only_own and held is None:
            return CHECK.verdict("warn", told, "Neither /proc nor NVML tells of other users.")
        return CHECK.verdict("pass", told)
    found.sort(key=lambda p: -((held or {}).get(p.pid, _Held()).bytes or 0))
    shared = {u.name for u in seen.units if u.shared}
    found = [replace(p, unit="") if p.unit in shared else p for p in found]
    ways = [_way_out(group, seen.units) for group in _together(found)]
    lines = [line_of(p) + _where(p) + _holds(p, held) for p in found[:_SHOWN]]
    rest = len(found) - _SHOWN
    return CHECK.verdict(
        "warn",
        "\n".join(lines) + (f"\nand {rest} more" if rest > 0 else "") + tail,
        "No run that is kept here; they hold GPU memory or may take it at any time.",
        "If not needed: " + listed([w.todo for w in ways], 6),
        [w.action for w in ways if w.action is not None],
    )


def _held(facts: Facts) -> dict[int, _Held] | None:
    """By pid; None when NVML did not answer at all."""
    gpus = facts.maybe(gpu_facts.PROBE)
    if gpus is None:
        return None
    found: dict[int, _Held] = {}
    for gpu in gpus.sample.gpus:
        for process in gpu.processes:
            found[process.pid] = _more(found.get(process.pid, _Held()), gpu.index, process)
    return found


def _unseen(facts: Facts, found: tuple[Seen, ...]) -> list[Seen]:
    """Holders that NVML names and whose memory map this agent's user cannot read.

    One of another pid namespace has no name here: check ``gpu-clean`` tells of its memory.
    """
    gpus = facts.maybe(gpu_facts.PROBE)
    known = {p.pid for p in found}
    unseen: dict[int, Seen] = {}
    for process in (p for g in (gpus.sample.gpus if gpus else ()) for p in g.processes):
        start = process.start_time
        if start is not None and process.pid not in known:
            unseen[process.pid] = Seen(
                process.pid, start, "gpu", "S", process.user, process.command, process.started,
                unit=process.unit, container=process.container,
                spared="its memory map says nothing to this agent's user",
            )  # fmt: skip
    return list(unseen.values())


def _more(held: _Held, gpu: int, process: GpuProcess) -> _Held:
    known = None if held.bytes is None or process.bytes is None else held.bytes + process.bytes
    return _Held((*held.gpus, gpu), known)


def _counts(process: Seen, held: dict[int, _Held] | None) -> bool:
    """vLLM always; another that has a GPU mapped if NVML lists it, and for more than a display."""
    if process.kind == "vllm" or held is None:
        return True
    mine = held.get(process.pid)
    return mine is not None and (mine.bytes is None or mine.bytes > _SMALL)


def _together(found: list[Seen]) -> list[list[Seen]]:
    """Those of one container, job, unit or tree, in the order of their first."""
    groups: dict[str, list[Seen]] = {}
    for process in found:
        unit = process.unit if process.unit.endswith(".service") else ""
        key = unit or process.container or process.job or f"pid {process.root or process.pid}"
        groups.setdefault(key, []).append(process)
    return list(groups.values())


def _way_out(group: list[Seen], units: tuple[UnitFacts, ...]) -> _WayOut:
    first = group[0]
    if first.unit.endswith(".service"):
        return _stop(group, next((u for u in units if u.name == first.unit), None))
    if first.container:
        return _WayOut(group, _stop_container(first.container))
    if first.job:
        return _WayOut(group, f"scancel {shlex.quote(first.job.partition(' ')[2])}")
    pids = " ".join(str(p.pid) for p in group[:32])
    ours = [p for p in group if not p.spared and p.state != "D"]
    why = next((p.spared for p in group if p.spared), "")
    if len(ours) < len(group):
        return _WayOut(group, f"kill {pids} (not by this agent: {show(why, 120) or 'stuck'})")
    what = "vLLM of no run kept here" if first.kind == "vllm" else "which holds a GPU"
    return _WayOut(group, f"kill {pids}", offers.terminate([target_of(p) for p in group], what))


def _stop(group: list[Seen], unit: UnitFacts | None) -> _WayOut:
    name = group[0].unit
    user, bare = cgroups.split_user(name)
    by = f" (as user {user})" if user is not None else ""
    command = f"systemctl {'--user ' if user is not None else ''}stop {shlex.quote(bare)}"
    if unit is None or unit.refusal:
        why = f" (not by this agent: {show(unit.refusal, 120)})" if unit else ""
        return _WayOut(group, f"{command}{by}{why}")
    return _WayOut(group, f"{command}{by}", offers.stop_unit(unit, [target_of(p) for p in group]))


def _stop_container(container: str) -> str:
    """The command that stops it, for a person: it ends with its container, or comes back."""
    kind, _, name = container.partition(" ")
    name = shlex.quote(name)
    known = {
        "docker": f"docker stop {name}",
        "podman": f"podman stop {name}",
        "containerd": f"nerdctl stop {name}",
        "cri-o": f"crictl stop {name}",
        "lxc": f"lxc-stop -n {name}",
        "nspawn": f"machinectl poweroff {name}",
        "kubernetes": f"scale down the owner of the pod with container {name} (crictl ps)",
    }
    return known.get(kind, f"stop container {name} with what started it")


def _where(process: Seen) -> str:
    parts = [p for p in (process.unit, process.container, process.job) if p]
    return f", in {show(', '.join(parts), 120)}" if parts else ""


def _holds(process: Seen, held: dict[int, _Held] | None) -> str:
    mine = (held or {}).get(process.pid)
    if mine is None:
        return ""
    amount = "an unknown amount" if mine.bytes is None else size(mine.bytes)
    gpus = ", ".join(str(g) for g in mine.gpus[:16])
    return f", holds {amount} of GPU {gpus}"


CHECK = Check(
    id="others",
    title="Nobody else on vLLM or the GPUs",
    needs=(PROBE,),
    wants=(gpu_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENCE_WHY,
    silence_todo=SILENCE_TODO,
)
