"""Check ``gpu-clean``: nobody else holds memory of the run's GPUs."""

from __future__ import annotations

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, plural, show, size, when
from eagle3_agent.protocol.values import Action, Gpu, GpuProcess, HostSample, Profile, Verdict

from .count import SILENT_TODO, SILENT_WHY
from .gpu_facts import PROBE, dirty
from .used import NO_GPU, folded, numbers, used_by_run

_HOLDERS_SHOWN = 8
_LINES_SHOWN = 8


def judge(facts: Facts, profile: Profile) -> Verdict:
    used = used_by_run(facts, profile)
    if not used.gpus:
        return CHECK.verdict("skip", NO_GPU)
    answering = [g for g in used.gpus if not g.error]
    if not answering:
        return CHECK.verdict("skip", "none of the run's GPUs can be read: see gpu-count")
    held = [g for g in answering if dirty(g)]
    if held and engine.resolve(facts, profile) != "transformers":
        return _held(held, facts, profile)
    unread = [g.index for g in answering if g.memory_used is None]
    if unread:
        return CHECK.verdict(
            "warn",
            f"NVML does not say how much memory is in use on GPU {numbers(unread)}"
            + _of_host(facts.get(PROBE).sample),
            "Parts that share the host's memory and some MIG slices do not report it; whether the "
            "run's share is free cannot be told.",
            "Look with nvidia-smi, and see that the host's memory is free.",
        )
    most = max(answering, key=lambda g: g.memory_used or 0)
    saw = f"{plural(len(answering), 'GPU')}, at most {size(most.memory_used or 0)} in use"
    if held:
        return CHECK.verdict("pass", f"{saw}; the transformers engine does not need it free")
    holders = [_holder(p) for g in answering for p in g.processes]
    return CHECK.verdict("pass", saw + (f" ({listed(holders, 3)})" if holders else ""))


def _of_host(sample: HostSample) -> str:
    if sample.memory_used is None or not sample.memory_total:
        return ""
    return f"; of the host's {size(sample.memory_total)}, {size(sample.memory_used)} are in use"


def _held(held: list[Gpu], facts: Facts, profile: Profile) -> Verdict:
    lines = folded([(gpu.index, _of_gpu(gpu, profile)) for gpu in held])
    holders = _Holders(list({p.pid: p for g in held for p in g.processes}.values()), facts)
    return CHECK.verdict(
        "block",
        "\n".join(lines[:_LINES_SHOWN])
        + (f"\nand {len(lines) - _LINES_SHOWN} more like these" * (len(lines) > _LINES_SHOWN)),
        "vLLM takes gpu_memory_utilization of the whole memory at start and fails, "
        "after the load, when less is free.",
        "\n".join(holders.todo()),
        holders.actions(),
    )


def _of_gpu(gpu: Gpu, profile: Profile) -> str:
    holders = [_holder(p) for p in gpu.processes]
    total = f" of {size(gpu.memory_total)}" if gpu.memory_total else ""
    return (
        f"{size(gpu.memory_used or 0)}{total} in use, "
        + (f"held by {listed(holders, _HOLDERS_SHOWN)}" if holders else "no holder listed")
        + _too_full(gpu, profile)
    )


def _too_full(gpu: Gpu, profile: Profile) -> str:
    if gpu.memory_total is None or gpu.memory_used is None:
        return ""
    share = profile.model.gpu_memory_utilization
    wanted, free = share * gpu.memory_total, gpu.memory_total - gpu.memory_used
    return f"; {size(free)} free, {share:g} of it all is {size(wanted)}" if free < wanted else ""


def _holder(process: GpuProcess) -> str:
    held = size(process.bytes) if process.bytes is not None else "an unknown amount"
    parts = [held, f"since {when(process.started)}"]
    parts += [f"unit {show(process.unit, 60)}"] if process.unit else []
    parts += [f"container {show(process.container, 60)}"] if process.container else []
    return (
        f"pid {process.pid} {show(process.user, 32) or 'unknown user'} "
        f"{show(process.command, 80) or 'unknown command'} ({', '.join(parts)})"
    )


# --------------------------------------------------------------------------- ways out


class _Holders:
    """Those who hold the memory, by what can be done about each."""

    def __init__(self, holders: list[GpuProcess], facts: Facts) -> None:
        seen = facts.get(PROBE)
        # who was seen in /proc; an action needs the identity as well, and leaves others out
        known = [p for p in holders if p.started is not None or p.start_time is not None]
        free = [p for p in known if str(p.pid) not in seen.spared]
        self.units = {u.name: u for u in seen.units if not u.refusal}
        self.refused = {u.name: u.refusal for u in seen.units if u.refusal}
        self.foreign = seen.foreign
        self.any = bool(holders)
        self.unknown = len(holders) - len(known)
        self.spared = [(p, seen.spared[str(p.pid)]) for p in known if str(p.pid) in seen.spared]
        self.of_units = [p for p in known if p.unit in self.units]
        self.alone = sorted((p for p in free if p.unit not in self.units), key=lambda p: p.pid)

    def todo(self) -> list[str]:
        lines = [
            f"If {show(name, 60)} is not needed: {_stop(name)}"
            for name in sorted({p.unit for p in self.of_units})
        ]
        if self.alone:
            pids = " ".join(str(p.pid) for p in self.alone[:16])
            lines.append(f"If they are yours and not needed: kill {pids}")
        refused = sorted({p.unit for p in self.alone} & set(self.refused))
        lines += [f"{show(n, 60)} is not to be stopped: {self.refused[n]}" for n in refused]
        lines += [f"pid {p.pid} is not to be ended: {show(why, 120)}" for p, why in self.spared[:4]]
        if self.unknown:
            lines.append(_FOREIGN if self.foreign else _UNSEEN)
        return lines if self.any else [_NOBODY]

    def actions(self) -> list[Action]:
        """Units first: a service whose process is killed may start it again."""
        found: list[Action | None] = []
        for name, unit in sorted(self.units.items()):
            of_unit = [p for p in self.of_units if p.unit == name]
            if of_unit:
                found.append(offers.stop_unit(unit, _targets(of_unit)))
        found.append(offers.terminate(_targets(self.alone), "what holds GPU memory"))
        return [action for action in found if action is not None]


_FOREIGN = (
    "The agent lives in a pid namespace of its own: a pid that the driver names may be somebody "
    "else's here. End the holder where it was started (on the host, or in its own container)."
)
_UNSEEN = (
    "A holder cannot be seen by the pid that the driver names: it is of another pid namespace or "
    "just gone. Run the check again, and end the holder where it was started."
)
_NOBODY = (
    "The holder is in another container or pid namespace, or is no longer a process: "
    "ask the host's administrator, or reset the GPU."
)


def _stop(unit: str) -> str:
    return " ".join(part for part in offers.stop_command(unit) if part != "--no-ask-password")


def _targets(processes: list[GpuProcess]) -> list[offers.Target]:
    found = (offers.target(p) for p in processes)
    return [target for target in found if target is not None]


CHECK = Check(
    id="gpu-clean",
    title="GPU memory free",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="block",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
