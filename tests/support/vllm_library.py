"""Start speculators' own generator with all patches, or with some left out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.worker.compat import imports, registry
from eagle3_agent.worker.compat.patch import Settings, generator_module

#: Without these there is no module to load anew.
IMPORTS = {patch.id for patch in imports.PATCHES}


_PLAIN = Settings()


def patched(
    without: Collection[str] = (),
    budget: int = 256,
    settings: Settings = _PLAIN,
    executor: Any = None,
) -> Any:
    """The generator's module, fresh, with every needed patch but those left out.

    ``budget``: tokens of one scheduler step at least; max_model_len where that is larger.
    ``executor``: a running one that a generator takes instead of starting its own.
    """
    found = [f for f in registry.findings() if f.patch not in without]
    registry.apply([f for f in found if f.patch in IMPORTS], settings)
    module: Any = importlib.reload(generator_module())
    if executor is not None:
        module.MultiprocExecutor = lambda **_: _Borrowed(executor)
    registry.apply(found, settings)
    module.MIN_MAX_BATCHED_TOKENS = budget
    return module


class _Borrowed:
    """A running executor for a generator that does not own it: its end ends nothing."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def shutdown(self) -> None:
        pass


def start(module: Any, folder: Path, layers: Sequence[int], **arguments: Any) -> Any:
    arguments = {"max_model_len": 256, **arguments}
    return module.VllmHiddenStatesGenerator(str(folder), list(layers), **arguments)


def told(call: Callable[[], Any]) -> str:
    """``Type: message`` of what the call raises; empty when it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
