"""Every check, in the order in which a report lists them."""

from __future__ import annotations

from . import compat, data, disk, gpu, interpreter, layers, leftovers, model, output
from .check import Check

CHECKS: tuple[Check, ...] = (
    interpreter.CHECK,
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
