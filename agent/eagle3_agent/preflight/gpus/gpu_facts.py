"""One look at the host's GPUs, and which of them a run will see."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from eagle3_agent import archive
from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import Gpu, HostSample

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 8.0


@dataclass(frozen=True)
class GpuFacts:
    sample: HostSample
    visible: str | None = None
    """``CUDA_VISIBLE_DEVICES`` as the worker will have it; None when it is not set."""


@dataclass(frozen=True)
class Selection:
    """The GPUs of ``CUDA_VISIBLE_DEVICES``, in its order."""

    gpus: tuple[Gpu, ...]
    unknown: str = ""
    """The first entry that names no GPU: CUDA sees nothing from there on."""


def select(visible: str | None, gpus: tuple[Gpu, ...]) -> Selection:
    """What CUDA makes of the variable: indices or (the start of) UUIDs, up to the first bad one."""
    if visible is None:
        return Selection(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not entry:
            break
        if entry.isascii() and entry.isdecimal():
            found = [g for g in gpus if g.index == int(entry[:9])]
        elif entry.startswith(("GPU-", "MIG-")):
            found = [g for g in gpus if g.uuid.startswith(entry)]
        else:
            found = []
        if len(found) != 1 or found[0] in chosen:
            return Selection(tuple(chosen), entry)
        chosen.append(found[0])
    return Selection(tuple(chosen))


def _collect(ask: Ask) -> GpuFacts:
    argv = archive.command("sample", "--interval", "0.2", "--count", "1")
    answer = bounded.run(argv, timeout=TIMEOUT, own_session=False)
    if answer.status != 0:
        raise RuntimeError(f"telemetry {answer.cut or answer.status}: {show(answer.last_words())}")
    sample = from_json(HostSample, json.loads(answer.stdout.splitlines()[-1]))
    return GpuFacts(sample, ask.profile.host.env.get(VISIBLE, os.environ.get(VISIBLE)))


PROBE = Probe("gpu", GpuFacts, _collect, timeout=TIMEOUT + 1)
