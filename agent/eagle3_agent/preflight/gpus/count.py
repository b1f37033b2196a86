"""Check ``gpu-count``: there are enough GPUs, and all of them answer."""

from __future__ import annotations

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol.values import Gpu, Profile, Verdict

from .gpu_facts import PROBE, VISIBLE, Selection
from .used import cpu_build, folded, seen_by_run


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    selection = seen_by_run(facts)
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
        return CHECK.verdict(
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
    if name == "transformers" or cpu_build(facts):
        return CHECK.verdict("pass", f"{_none(facts, selection)}; {name} computes on the CPU here")
    return CHECK.verdict(
        "block",
        f"{_none(facts, selection)}; tensor_parallel_size is {profile.model.tensor_parallel_size}",
        "vLLM's GPU build does not start without a GPU.",
        _way_to_gpus(facts),
    )


def _judge_others(selection: Selection, lost: list[Gpu], saw: str, profile: Profile) -> Verdict:
    if lost:
        return CHECK.verdict(
            "warn",
            f"{saw}; {_name_lost(lost)}",
            "A lost GPU can fail every CUDA start of this host.",
            "Leave it out with CUDA_VISIBLE_DEVICES, or reset it or reboot.",
        )
    kinds = sorted({show(g.name, 60) for g in selection.gpus})
    in_pci_order = profile.host.env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(kinds) > 1 and not in_pci_order:
        return CHECK.verdict(
            "warn",
            f"{saw}; not all alike: {listed(kinds)}",
            "CUDA numbers the fastest GPU first, this list goes by PCI bus: "
            "index 0 may be another GPU for the run.",
            'Add CUDA_DEVICE_ORDER = "PCI_BUS_ID" to host.env.',
        )
    return CHECK.verdict("pass", saw)


def _lost(lost: list[Gpu], saw: str) -> Verdict:
    return CHECK.verdict(
        "block",
        f"{saw}; {_name_lost(lost)}",
        "This run needs that GPU, and CUDA cannot start on it.",
        "Leave it out with CUDA_VISIBLE_DEVICES in host.env if enough are left; "
        "else reset it (nvidia-smi --gpu-reset) or reboot the host.",
    )


def _name_lost(lost: list[Gpu]) -> str:
    return listed(folded([(g.index, f"cannot be read: {show(g.error, 160)}") for g in lost]), 4)


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


SILENT_WHY = "An NVML call that hangs means a driver in trouble; the run would hang there too."
SILENT_TODO = "Try nvidia-smi by hand; if it hangs too, reboot or reload the driver."

CHECK = Check(
    id="gpu-count",
    title="GPUs present",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="block",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
