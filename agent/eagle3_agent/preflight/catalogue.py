"""Every check, in the order in which a report lists them."""

from __future__ import annotations

from .check import Ask, Check
from .data import rows as data
from .gpus import present as gpu
from .libraries import compat, interpreter, script
from .model import folder as model
from .model import layers
from .output import disk, filesystem, records, speed
from .output import folder as output
from .running import leftovers, locks, others, stuck

CHECKS: tuple[Check, ...] = (
    interpreter.CHECK,
    script.CHECK,
    gpu.COUNT,
    gpu.CLEAN,
    leftovers.CHECK,
    others.CHECK,
    stuck.CHECK,
    locks.CHECK,
    model.CHECK,
    layers.CHECK,
    data.CHECK,
    output.CHECK,
    filesystem.CHECK,
    disk.CHECK,
    speed.CHECK,
    records.CHECK,
    compat.CHECK,
)


def for_ask(ask: Ask) -> tuple[Check, ...]:
    """The checks that bear on this profile: the script's where one is to be run, deep if asked."""
    return tuple(c for c in CHECKS if c.applies(ask))
