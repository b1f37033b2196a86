"""Check ``gpu-modes``: compute mode, MIG, persistence and ECC as they are set; nothing is set."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3_agent.nvml_facts import Health
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, plural, show, size
from eagle3_agent.protocol.values import Gpu, Profile, Verdict

from .count import SILENT_TODO, SILENT_WHY
from .gpu_facts import PROBE, VISIBLE
from .used import NO_GPU, folded, used_by_run, with_health


@dataclass
class _Found:
    """What stands against the run, GPU by GPU, and the reasons and ways out that belong to it."""

    stops: list[tuple[int, str]] = field(default_factory=list)
    warns: list[tuple[int, str]] = field(default_factory=list)
    why: dict[str, None] = field(default_factory=dict)
    todo: dict[str, None] = field(default_factory=dict)

    def add(self, hard: bool, index: int, text: str, why: str, todo: str) -> None:
        (self.stops if hard else self.warns).append((index, text))
        self.why[why] = None
        self.todo[todo] = None


def judge(facts: Facts, profile: Profile) -> Verdict:
    used = used_by_run(facts, profile)
    if not used.gpus:
        return CHECK.verdict("skip", NO_GPU)
    known = with_health(facts, profile)
    if not known:
        return CHECK.verdict("skip", "no GPU of the run told its modes: see gpu-count")
    found = _Found()
    ranks = 1 if engine.resolve(facts, profile) == "transformers" else len(used.gpus)
    for gpu, health in known:
        _compute(found, gpu, health)
        _mig(found, gpu, health, ranks)
        _pending(found, health)
    saw = folded(found.stops) + folded(found.warns)
    if not saw:
        return CHECK.verdict("pass", _well(known))
    return CHECK.verdict(
        "block" if found.stops else "warn",
        "\n".join(saw),
        " ".join(found.why),
        "\n".join(found.todo),
    )


def _compute(found: _Found, gpu: Gpu, health: Health) -> None:
    mode = health.modes.compute
    way = f"As root: nvidia-smi -i {health.index} -c DEFAULT"
    if mode == "prohibited":
        found.add(
            True,
            gpu.index,
            "compute mode PROHIBITED",
            "No process may use CUDA on it.",
            way,
        )
    elif mode.startswith("exclusive"):
        held = bool(gpu.processes)
        holders = listed([f"pid {p.pid}" for p in gpu.processes], 3)
        found.add(
            held,
            gpu.index,
            f"compute mode {mode.upper().replace('-', '_')}" + (f", held by {holders}" * held),
            "One process at a time may use such a GPU"
            + (": CUDA finds it busy." if held else ": a second one, as verify is, finds it busy."),
            way,
        )


def _mig(found: _Found, gpu: Gpu, health: Health, ranks: int) -> None:
    if not health.modes.mig:
        return
    if gpu.uuid.startswith("MIG-"):
        if ranks > 1:
            found.add(
                False,
                gpu.index,
                f"{ranks} ranks are to run on MIG slices",
                "CUDA shows a process one slice, and slices are no peers of each other "
                "(NVIDIA's MIG guide): tensor parallel over them is not known to start.",
                "Set model.tensor_parallel_size to 1, or use GPUs without MIG.",
            )
        return
    slices = [part for part in health.slices if part.uuid]
    if not slices:
        found.add(
            True,
            gpu.index,
            "MIG is on and there is no slice that could be read",
            "CUDA sees slices alone of a GPU in MIG mode.",
            f"Make slices (nvidia-smi mig -cgi ...), or as root: nvidia-smi -i {gpu.index} -mig 0",
        )
        return
    names = [f"{show(p.uuid, 50)} ({_room(p.name, p.memory_total)})" for p in slices]
    found.add(
        False,
        gpu.index,
        f"MIG is on: {plural(len(slices), 'slice')}: {listed(names, 3)}",
        "CUDA sees one slice of it and not the GPU, so memory is the slice's.",
        f'Name the slice in host.env: {VISIBLE} = "{show(slices[0].uuid, 50)}"',
    )


def _room(name: str, total: int | None) -> str:
    profile = show(name, 60).rpartition("MIG ")[2] or "unnamed"
    return f"{profile}, {size(total) if total else 'memory not said'}"


def _pending(found: _Found, health: Health) -> None:
    modes = health.modes
    for name, now, then in (
        ("MIG", modes.mig, modes.mig_pending),
        ("ECC", modes.ecc, modes.ecc_pending),
    ):
        if now is not None and then is not None and now != then:
            found.add(
                False,
                health.index,
                f"{name} is {_on(now)} and will be {_on(then)} after the next reset",
                "A reset or reboot in the meantime makes another GPU of it.",
                f"Let it settle before the run: nvidia-smi --gpu-reset -i {health.index}",
            )


def _on(value: bool) -> str:
    return "on" if value else "off"


def _well(known: list[tuple[Gpu, Health]]) -> str:
    """Each mode with how many have it; a mode that nobody tells is said to be unknown."""
    parts = [plural(len(known), "GPU")]
    silent = []
    computes = sorted({h.modes.compute for _, h in known if h.modes.compute})
    parts += [f"compute mode {', '.join(computes)}"] if computes else []
    silent += [] if computes else ["compute mode"]
    for name, values in (
        ("MIG", {h.modes.mig for _, h in known}),
        ("persistence", {h.modes.persistence for _, h in known}),
        ("ECC", {h.modes.ecc for _, h in known}),
    ):
        told = sorted((_on(v) for v in values if v is not None), reverse=True)
        if told:
            parts.append(f"{name} {' and '.join(told)}")
        elif name != "MIG":  # a part without MIG says nothing of it
            silent.append(name)
    if any(h.modes.persistence is False for _, h in known):
        parts.append("each first start initialises the driver anew, some seconds")
    text = ", ".join(parts)
    return text + (f"; NVML does not say: {', '.join(silent)}" if silent else "")


CHECK = Check(
    id="gpu-modes",
    title="GPU modes usable",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
