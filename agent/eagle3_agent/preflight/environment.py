"""The host's fingerprint: what a diff of two attempts compares."""

from __future__ import annotations

import os
import platform
from typing import Any

from .check import Facts
from .gpus import gpu_facts
from .libraries import interpreter_facts


def fingerprint(facts: Facts) -> dict[str, Any]:
    """Flat: strings, numbers and lists of strings.  A key that is not known is left out.

    ``host``, ``kernel``, ``machine``, ``agent_python``, ``cpus``; ``python``, ``python_path`` and
    ``<distribution>`` for each that is installed; ``driver``, ``cuda``, ``gpus`` (names),
    ``gpu_uuids``, ``cuda_visible_devices``.
    """
    system = os.uname()
    known: dict[str, Any] = {
        "host": system.nodename,
        "kernel": system.release,
        "machine": system.machine,
        "agent_python": platform.python_version(),
        "cpus": os.cpu_count() or 0,
    }
    seen = facts.maybe(interpreter_facts.PROBE)
    if seen is not None and not seen.problem:
        known |= {"python": seen.python, "python_path": seen.path, **seen.dists}
    gpus = facts.maybe(gpu_facts.PROBE)
    if gpus is not None:
        known |= {"driver": gpus.sample.driver, "cuda": gpus.sample.cuda}
        known["gpus"] = [g.name for g in gpus.sample.gpus]
        known["gpu_uuids"] = [g.uuid for g in gpus.sample.gpus]
        if gpus.visible is not None:
            known["cuda_visible_devices"] = gpus.visible
    return {name: value for name, value in known.items() if value != ""}
