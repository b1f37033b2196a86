"""Every check, in the order in which a report lists them."""

from __future__ import annotations

from eagle3_agent.protocol.values import Profile

from . import compat, data, disk, gpu, interpreter, layers, leftovers, model, output, script
from .check import Check

CHECKS: tuple[Check, ...] = (
    interpreter.CHECK,
    script.CHECK,
    gpu.COUNT,
    gpu.CLEAN,
    leftovers.CHECK,
    model.CHECK,
    layers.CHECK,
    data.CHECK,
    output.CHECK,
    disk.CHECK,
    compat.CHECK,
)


def for_profile(profile: Profile) -> tuple[Check, ...]:
    """The checks that bear on this profile: the script's where one is to be run."""
    return tuple(c for c in CHECKS if c is not script.CHECK or profile.engine.name == "script")
