"""What a run needs for itself alone: GPUs (or the CPU) and its output folder; pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .preflight.gpus.gpu_facts import VISIBLE, select
from .protocol.values import Gpu, Profile

#: Claimed when nobody can say which GPUs there are: clashes with every GPU.
ANY_GPU = "gpu:*"

_SLICE = "gpu:MIG-"


def of(
    profile: Profile, gpus: tuple[Gpu, ...], unknown: bool, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """``gpu:UUID`` for each GPU the worker will see, ``cpu`` without any, and ``output:FOLDER``.

    ``environ`` is what the worker inherits; ``unknown`` says that NVML gave no answer.  A MIG
    slice is claimed by the name that the run gives it, since samples list no slices: whoever
    takes the whole GPU that it is part of is stopped by the memory in use, not by this.
    """
    visible = profile.host.env.get(VISIBLE, environ.get(VISIBLE))
    seen = select(visible, gpus).gpus
    devices = [f"gpu:{gpu.uuid or gpu.index}" for gpu in seen]
    entries = [entry.strip() for entry in (visible or "").split(",")]
    devices += [f"gpu:{entry}" for entry in entries if entry.startswith("MIG-")]
    if unknown:
        devices = [ANY_GPU]
    output = os.path.realpath(profile.output.dir)
    return (*(devices or ["cpu"]), f"output:{output}")


def clash(mine: Iterable[str], theirs: Iterable[str], same_host: bool = True) -> str:
    """The first thing that both claim; empty when none.

    Between runs of two hosts that share a home, only the output folder is the same thing.
    """
    others = set(theirs)
    for claim in mine:
        if not same_host and not claim.startswith("output:"):
            continue
        if claim in others or any(_same_slice(claim, other) for other in others):
            return claim
        if claim.startswith("gpu:"):
            if ANY_GPU in others:
                return claim
            if claim == ANY_GPU:
                held = next((c for c in others if c.startswith("gpu:")), "")
                if held:
                    return held
    return ""


def _same_slice(one: str, other: str) -> bool:
    """CUDA takes the beginning of a slice's UUID for its name, too."""
    slices = one.startswith(_SLICE) and other.startswith(_SLICE)
    return slices and (one.startswith(other) or other.startswith(one))


def describe(claim: str) -> str:
    """A claim for a person."""
    kind, _, name = claim.partition(":")
    if kind == "output":
        return f"the output folder {name}"
    kind = "MIG slice" if claim.startswith(_SLICE) else "GPU"
    return "the CPU" if claim == "cpu" else f"{kind} {name}"
