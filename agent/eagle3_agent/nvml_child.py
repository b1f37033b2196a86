"""A process that reads all GPUs by NVML and says before each call which one it is about to make.

One line each on stdout: ``call NAME``, and ``at``, ``host``, ``library``, ``problem``, ``gpu``,
``health``, ``pairs`` and ``end`` with JSON.  Whoever started it may have to kill it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

from . import nvml, nvml_health
from .protocol import dumps

#: The ``at`` of questions about pairs of GPUs.
PAIRS = -1


def tell(done: str, hung: str) -> None:
    """All GPUs but ``done`` (indices, comma between), and pairs of all but ``hung``."""
    _say("library", nvml.library_version())
    try:
        opened = nvml.Nvml(lambda name: _write(f"call {name}"))
        count = opened.count()
    except nvml.NvmlUnavailable as error:
        _say("problem", str(error))
        _say("end", None)
        return
    _say("host", {"driver": opened.driver, "cuda": opened.cuda, "count": count})
    lost = {int(index) for index in hung.split(",") if index}
    for index in range(count):
        if str(index) not in done.split(","):
            _say("at", index)
            if not _one(opened, index):
                lost.add(index)
    _say("at", PAIRS)
    whole = tuple(index for index in range(count) if index not in lost)
    with contextlib.suppress(opened.lib.NVMLError):
        _say("pairs", nvml_health.pairs(opened, whole))
    _say("end", None)


def _one(opened: nvml.Nvml, index: int) -> bool:
    """Whether it could be read."""
    gpu, odd = opened.gpu(index)
    _say("gpu", gpu)
    if gpu.error:
        return False
    try:
        _say("health", nvml_health.read(opened, index, odd))
    except opened.lib.NVMLError as error:  # it was lost in between
        _say("gpu", replace(gpu, error=opened.words(error)))
        return False
    return True


def _say(word: str, value: Any) -> None:
    _write(f"{word} {dumps(value)}")


def _write(line: str) -> None:
    os.write(1, line.encode("ascii", "replace") + b"\n")
