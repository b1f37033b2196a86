"""Patch of modules that speculators imports and that this vLLM has elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from .patch import Patch, Settings, Verdict
from .sources import GENERATOR, Sources, UnreadableError

#: (module, name) as speculators imports it -> where an older vLLM has it.
_MOVED = {("vllm.utils.hashing", "get_hash_fn_by_name"): "vllm.utils"}


def _probe(sources: Sources) -> Verdict:
    wanted = sources.imports(GENERATOR, "vllm")
    lost = [(module, name) for module, name in wanted if not _there(sources, module, name)]
    for module, name in lost:
        before = _MOVED.get((module, name))
        if before is None or not _there(sources, before, name):
            raise UnreadableError(f"the generator imports {name} of {module}, which is not there")
    if lost:
        module, name = lost[0]
        return "needed", f"the generator imports {name} of {module}; {_MOVED[lost[0]]} has it"
    return "not-needed", f"all {len(wanted)} names that the generator imports of vLLM are there"


def _there(sources: Sources, module: str, name: str) -> bool:
    try:
        names = sources.names(module)
    except UnreadableError:
        return False
    return names is None or name in names


def _apply(settings: Settings) -> None:
    for (module, name), before in _MOVED.items():
        if importlib.util.find_spec(module) is None:
            made = sys.modules.setdefault(module, ModuleType(module))
            setattr(made, name, getattr(importlib.import_module(before), name))


PATCHES = (
    Patch(
        id="speculators/moved-imports",
        title="Find what vLLM has elsewhere",
        symptom="ModuleNotFoundError: No module named 'vllm.utils.hashing'",
        cause="speculators 0.4 imports a module that vLLM has since 0.11.1",
        change="gives the module the function that vllm.utils has",
        until="vLLM 0.11.0 is not supported any more",
        probe=_probe,
        apply=_apply,
    ),
)
