"""Checks ``gpu-count`` (enough, and all answer) and ``gpu-clean`` (their memory is free)."""

from __future__ import annotations

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, plural, show, size, when
from eagle3_agent.protocol.values import Gpu, GpuProcess, Profile, Verdict

from .gpu_facts import PROBE, VISIBLE, Selection, select

#: Bytes in use that do not count as dirty: a display server or a monitor, no CUDA context.
CLEAN_LIMIT = 256 * 1024 * 1024

_HOLDERS_SHOWN = 8


def used_by_run(facts: Facts, profile: Profile) -> Selection:
    """The GPUs that the run may use: the first tensor_parallel_size of those that it sees."""
    seen = facts.get(PROBE)
    selection = select(seen.visible, seen.sample.gpus)
    if engine.resolve(facts, profile) == "transformers":
        return selection  # it takes the one with most free memory
    return Selection(selection.gpus[: profile.model.tensor_parallel_size], selection.unknown)


# --------------------------------------------------------------------------- gpu-count


def judge_count(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    selection = select(seen.visible, seen.sample.gpus)
    name = engine.resolve(facts, profile)
    if not selection.gpus:
        return _judge_none(facts, profile, selection, name)
    lost = [g for g in selection.gpus if g.error]
    if name == "transformers":
        saw = f"{_what(selection.gpus, seen.visible)}; transformers uses one of them or the CPU"
        return _judge_others(selection, lost, saw, profile)
    wanted = profile.model.tensor_parallel_size
    saw = f"{_what(selection.gpus, seen.visible)}; tensor_parallel_size is {wanted}"
    if len(selection.gpus) < wanted:
        end = show(selection.unknown, 60)
        return COUNT.verdict(
            "block",
            saw + (f"; {VISIBLE} ends at {end}, which is no GPU here" if end else ""),
            f"{plural(wanted, 'rank')} need {wanted} GPUs of one host.",
            f"Set model.tensor_parallel_size to {len(selection.gpus)} or less, "
            f"or let the run see more GPUs ({VISIBLE}).",
        )
    if any(g in lost for g in selection.gpus[:wanted]):
        return _lost(lost, saw)
    return _judge_others(selection, lost, saw, profile)


def _judge_none(facts: Facts, profile: Profile, selection: Selection, name: str) -> Verdict:
    if name == "transformers" or _cpu_build(facts):
        return COUNT.verdict("pass", f"{_none(facts, selection)}; {name} computes on the CPU here")
    return COUNT.verdict(
        "block",
        f"{_none(facts, selection)}; tensor_parallel_size is {profile.model.tensor_parallel_size}",
        "vLLM's GPU build does not start without a GPU.",
        _way_to_gpus(facts),
    )


def _judge_others(selection: Selection, lost: list[Gpu], saw: str, profile: Profile) -> Verdict:
    if lost:
        return COUNT.verdict(
            "warn",
            f"{saw}; {_name_lost(lost)}",
            "A lost GPU can fail every CUDA start of this host.",
            "Leave it out with CUDA_VISIBLE_DEVICES, or reset it or reboot.",
        )
    kinds = sorted({show(g.name, 60) for g in selection.gpus})
    in_pci_order = profile.host.env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(kinds) > 1 and not in_pci_order:
        return COUNT.verdict(
            "warn",
            f"{saw}; not all alike: {listed(kinds)}",
            "CUDA numbers the fastest GPU first, this list goes by PCI bus: "
            "index 0 may be another GPU for the run.",
            'Add CUDA_DEVICE_ORDER = "PCI_BUS_ID" to host.env.',
        )
    return COUNT.verdict("pass", saw)


def _lost(lost: list[Gpu], saw: str) -> Verdict:
    return COUNT.verdict(
        "block",
        f"{saw}; {_name_lost(lost)}",
        "This run needs that GPU, and CUDA cannot start on it.",
        "Leave it out with CUDA_VISIBLE_DEVICES in host.env if enough are left; "
        "else reset it (nvidia-smi --gpu-reset) or reboot the host.",
    )


def _name_lost(lost: list[Gpu]) -> str:
    return listed([f"GPU {g.index} cannot be read: {show(g.error, 100)}" for g in lost], 4)


def _what(gpus: tuple[Gpu, ...], visible: str | None) -> str:
    kinds: dict[str, int] = {}
    for gpu in gpus:
        name = show(gpu.name, 60) or "unnamed GPU"
        kinds[name] = kinds.get(name, 0) + 1
    text = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    return text + (f" ({VISIBLE}={show(visible, 80)})" if visible is not None else "")


def _none(facts: Facts, selection: Selection) -> str:
    seen = facts.get(PROBE)
    if seen.sample.gpus:
        bad = f" (there is no {show(selection.unknown, 60)})" if selection.unknown else ""
        return (
            f"the host has {plural(len(seen.sample.gpus), 'GPU')}, the run would see none: "
            f"{VISIBLE}={show(seen.visible or '', 80)!r}{bad}"
        )
    return f"no GPU: {show(seen.sample.gpu_problem) or 'NVML lists none'}"


def _way_to_gpus(facts: Facts) -> str:
    if facts.get(PROBE).sample.gpus:
        return f"Correct {VISIBLE} in host.env (or in the environment that started the agent)."
    return (
        "Load the NVIDIA driver (nvidia-smi must list the GPUs), "
        'or set engine.name to "transformers" to run the reference on the CPU.'
    )


def _cpu_build(facts: Facts) -> bool:
    seen = facts.maybe(interpreter_facts.PROBE)
    return seen is not None and engine.is_cpu_build(seen.dists)


# --------------------------------------------------------------------------- gpu-clean


def judge_clean(facts: Facts, profile: Profile) -> Verdict:
    used = used_by_run(facts, profile)
    if not used.gpus:
        return CLEAN.verdict("skip", "no GPU that the run would see")
    dirty = [g for g in used.gpus if (g.memory_used or 0) > CLEAN_LIMIT]
    if dirty and engine.resolve(facts, profile) != "transformers":
        return _dirty(dirty, profile)
    unread = [g for g in used.gpus if g.memory_used is None]
    if unread:
        names = listed([f"GPU {g.index}" for g in unread], 8)
        return CLEAN.verdict(
            "warn",
            f"NVML does not say how much memory is in use on {names}",
            "Parts with unified memory and some MIG slices do not report it.",
            "Look with nvidia-smi, and at the host's free memory.",
        )
    most = max(used.gpus, key=lambda g: g.memory_used or 0)
    saw = f"{plural(len(used.gpus), 'GPU')}, at most {size(most.memory_used or 0)} in use"
    if dirty:
        return CLEAN.verdict("pass", f"{saw}; the transformers engine does not need it free")
    holders = [_holder(p) for g in used.gpus for p in g.processes]
    return CLEAN.verdict("pass", saw + (f" ({listed(holders, 3)})" if holders else ""))


def _dirty(dirty: list[Gpu], profile: Profile) -> Verdict:
    lines, ends_by_hand = [], []
    for gpu in dirty:
        holders = [_holder(p) for p in gpu.processes]
        ends_by_hand += [str(p.pid) for p in gpu.processes]
        total = f" of {size(gpu.memory_total)}" if gpu.memory_total else ""
        lines.append(
            f"GPU {gpu.index}: {size(gpu.memory_used or 0)}{total} in use, "
            + (f"held by {listed(holders, _HOLDERS_SHOWN)}" if holders else "no holder listed")
            + _too_full(gpu, profile)
        )
    pids = sorted(set(ends_by_hand), key=int)
    return CLEAN.verdict(
        "block",
        "\n".join(lines),
        "vLLM takes gpu_memory_utilization of the whole memory at start and fails, "
        "after the load, when less is free.",
        f"If they are yours and not needed: kill {' '.join(pids[:16])}"
        if pids
        else "The holder is in another container or pid namespace, or is no longer a process: "
        "ask the host's administrator, or reset the GPU.",
    )


def _too_full(gpu: Gpu, profile: Profile) -> str:
    if gpu.memory_total is None or gpu.memory_used is None:
        return ""
    share = profile.model.gpu_memory_utilization
    wanted, free = share * gpu.memory_total, gpu.memory_total - gpu.memory_used
    return f"; {size(free)} free, {share:g} of it all is {size(wanted)}" if free < wanted else ""


def _holder(process: GpuProcess) -> str:
    held = size(process.bytes) if process.bytes is not None else "an unknown amount"
    return (
        f"pid {process.pid} {show(process.user, 32) or 'unknown user'} "
        f"{show(process.command, 80) or 'unknown command'} ({held}, since {when(process.started)})"
    )


_SILENT_WHY = "An NVML call that hangs means a driver in trouble; the run would hang there too."
_SILENT_TODO = "Try nvidia-smi by hand; if it hangs too, reboot or reload the driver."

COUNT = Check(
    id="gpu-count",
    title="GPUs present",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge_count,
    silence="block",
    silence_why=_SILENT_WHY,
    silence_todo=_SILENT_TODO,
)
CLEAN = Check(
    id="gpu-clean",
    title="GPU memory free",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge_clean,
    silence="block",
    silence_why=_SILENT_WHY,
    silence_todo=_SILENT_TODO,
)
