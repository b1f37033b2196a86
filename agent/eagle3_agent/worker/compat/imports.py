"""Patches of what stops speculators from being imported at all."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from types import ModuleType

from .patch import Patch, Settings, Verdict
from .sources import GENERATOR, Sources, UnreadableError, shown

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
        if module not in sys.modules and importlib.util.find_spec(module) is None:
            made = sys.modules[module] = ModuleType(module)
            setattr(made, name, getattr(importlib.import_module(before), name))


# ------------------------------------------------------------------ annotations

_CONFIGS = "transformers.configuration_utils"


def _probe_annotations(sources: Sources) -> Verdict:
    tree = sources.module(_CONFIGS)
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and "torch." in ast.unparse(node.annotation)
    ]
    if not uses:
        return "not-needed", f"no field of {_CONFIGS} is annotated with a name of torch"
    seen = f"{_CONFIGS} has `{shown(uses[0], 90)}` and imports torch "
    if any(isinstance(node, ast.Import) and node.names[0].name == "torch" for node in tree.body):
        return "not-needed", f"{seen}at its top"
    return "needed", f"{seen}for type checkers alone, or within a condition"


def _apply_annotations(settings: Settings) -> None:
    import torch
    from transformers import configuration_utils

    if not hasattr(configuration_utils, "torch"):
        # a name that is not declared there, and that pydantic looks for
        vars(configuration_utils)["torch"] = torch


PATCHES = (
    Patch(
        id="speculators/config-annotations",
        title="Let pydantic read transformers' config class",
        symptom="importing speculators: PydanticUndefinedAnnotation: name 'torch' is not defined",
        cause="speculators makes a pydantic model of transformers' config, whose fields are "
        "annotated with names that transformers 5 imports for type checkers alone",
        change="puts torch among that module's names",
        until="speculators is 0.5 or later",
        probe=_probe_annotations,
        apply=_apply_annotations,
    ),
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
