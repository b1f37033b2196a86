"""One look at the host's GPUs, and which of them a run will see."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from eagle3_agent import processes, telemetry
from eagle3_agent.nvml_facts import Health, Pair, Slice
from eagle3_agent.preflight.actions import units
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.running import guard
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Gpu, HostSample

from . import reading

VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Bytes in use that do not count as dirty: a display server or a monitor, no CUDA context.
CLEAN_LIMIT = 256 * 1024 * 1024

_MODULE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class GpuFacts:
    sample: HostSample
    visible: str | None = None
    """``CUDA_VISIBLE_DEVICES`` as the worker will have it; None when it is not set."""
    health: tuple[Health, ...] = ()
    """Of the GPUs that could be read, by index."""
    pairs: tuple[Pair, ...] = ()
    pairs_problem: str = ""
    """Why pairs are missing, in words."""
    library: str = ""
    """Version of the NVML library; empty where there is none."""
    module: str = ""
    """Version of the loaded kernel module (/proc/driver/nvidia/version); empty where not said."""
    units: tuple[units.UnitFacts, ...] = ()
    """Units whose processes hold memory that a run needs."""
    spared: dict[str, str] = field(default_factory=dict)
    """Pid -> why this agent must not, or cannot, end it, of those that hold such memory."""
    foreign: bool = False
    """The agent lives in a pid namespace of its own, and the driver's pids are not its."""

    def health_of(self, index: int) -> Health | None:
        return next((h for h in self.health if h.index == index), None)


@dataclass(frozen=True)
class Selection:
    """The GPUs of ``CUDA_VISIBLE_DEVICES``, in its order."""

    gpus: tuple[Gpu, ...]
    unknown: str = ""
    """The first entry that names no GPU: CUDA sees nothing from there on."""


def select(
    visible: str | None, gpus: tuple[Gpu, ...], health: tuple[Health, ...] = ()
) -> Selection:
    """What CUDA makes of the variable: indices or (the start of) UUIDs, up to the first bad one.

    A MIG slice, which only its own UUID names, comes as a ``Gpu`` with the slice's memory and
    processes and the index of the GPU that it is part of.
    """
    if visible is None:
        return Selection(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not entry:
            break
        if entry.isascii() and entry.isdecimal():
            found = [g for g in gpus if g.index == int(entry[:9])]
        elif entry.startswith("MIG-"):
            found = [g for g in _slices(gpus, health) if g.uuid.startswith(entry)]
        elif entry.startswith("GPU-"):
            found = [g for g in gpus if g.uuid.startswith(entry)]
        else:
            found = []
        if len(found) != 1 or found[0] in chosen:
            return Selection(tuple(chosen), entry)
        chosen.append(found[0])
    return Selection(tuple(chosen))


def _slices(gpus: tuple[Gpu, ...], health: tuple[Health, ...]) -> list[Gpu]:
    by_index = {gpu.index: gpu for gpu in gpus}
    return [
        _as_gpu(by_index[h.index], part)
        for h in health
        for part in h.slices
        if h.index in by_index and part.uuid
    ]


def _as_gpu(gpu: Gpu, part: Slice) -> Gpu:
    return replace(
        gpu,
        uuid=part.uuid,
        name=part.name or f"{gpu.name} MIG slice",
        memory_used=part.memory_used,
        memory_total=part.memory_total,
        processes=part.processes,
        utilization=None,
    )


def _collect(ask: Ask) -> GpuFacts:
    look = reading.look()
    gpus = tuple(look.gpus[index] for index in sorted(look.gpus))
    holders = [p for gpu in gpus if dirty(gpu) for p in gpu.processes if p.start_time is not None]
    sample = telemetry.Sampler().host(gpus, look.problem, look.driver, look.cuda)
    return GpuFacts(
        sample=sample,
        visible=ask.profile.host.env.get(VISIBLE, os.environ.get(VISIBLE)),
        health=tuple(look.health[index] for index in sorted(look.health)),
        pairs=look.pairs,
        pairs_problem=look.pairs_problem,
        library=look.library,
        module=module_version(_read_module()),
        units=units.look(p.unit for p in holders if p.unit),
        spared=_spared([p.pid for p in holders]),
        foreign=not processes.in_first_namespace(),
    )


def _spared(pids: list[int]) -> dict[str, str]:
    found = guard.spared(pids)
    for pid in pids:
        process = processes.read(pid)
        if process is not None and not process.running:
            found[pid] = "it is dead already, and waits for its parent to take note"
    return {str(pid): why for pid, why in found.items()}


def dirty(gpu: Gpu) -> bool:
    """Whether somebody holds memory that a run needs."""
    return (gpu.memory_used or 0) > CLEAN_LIMIT


def _read_module() -> str:
    try:
        with _MODULE.open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def module_version(text: str) -> str:
    """``580.95.05`` from the text of /proc/driver/nvidia/version; pure."""
    line = next((x for x in text.splitlines() if x.startswith("NVRM version:")), "")
    found = re.search(r"\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\s", line + " ")
    return show(found[1], 40) if found else ""


PROBE = Probe("gpu", GpuFacts, _collect, timeout=reading.WHOLE + 4)
