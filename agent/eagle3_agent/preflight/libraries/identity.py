"""What a measurement of the profile's interpreter depends on, as one key.

Two measurements with one key would find the same: the interpreter and what is installed in it,
this agent, the host's GPUs and driver, the profile's fields that bear on it, and the model's
folder.  A source file that was edited in place in site-packages is not seen.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Any

from eagle3_agent import archive
from eagle3_agent.preflight import engine
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.values import Profile

from .interpreter_facts import InterpreterFacts, worker_env

#: Bumped when a report is made or read otherwise than before.
_FORM = 1

#: Variables that vLLM, torch and Python read.
_BEARING = ("VLLM_", "CUDA", "NVIDIA_", "HF_", "TRANSFORMERS_", "TORCH", "PYTHON", "OMP_")
_EXACTLY = ("HOME", "PATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")

#: Bytes of a config.json, and entries of a model's folder, that are looked at.
_CONFIG, _ENTRIES = 16 * 1024 * 1024, 8192


def key(kind: str, profile: Profile, seen: InterpreterFacts, *, model: bool) -> str:
    """The key of a measurement of ``kind``; with ``model`` it also depends on the checkpoint.

    Empty where what is installed leaves no stamp: such a measurement is not to be kept.
    """
    if seen.problem or engine.vllm_dist(seen.dists) not in seen.stamps:
        return ""
    parts: dict[str, Any] = {
        "form": [_FORM, kind],
        "host": _host(),
        "interpreter": [seen.path, seen.executable, seen.python, seen.prefix, seen.dists],
        "installed": [seen.stamps, _folders(seen.stamps)],
        "agent": _agent(),
        "environment": _environment(profile),
        "engine": profile.engine,
    }
    if model:
        asked = [profile.model, profile.capture, profile.output.format]
        parts["model"] = [*asked, _model(profile.model.path)]
    return hashlib.sha256(dumps(parts).encode("ascii")).hexdigest()


def _host() -> list[Any]:
    try:
        driver = Path("/proc/driver/nvidia/version").read_text(errors="replace")[:4096]
    except OSError:
        driver = ""
    try:
        # one a GPU; others, such as nvidia-uvm, come with the first use
        nodes = sorted(n for n in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", n, re.ASCII))
    except OSError:
        nodes = []
    return [platform.node(), platform.release(), driver, nodes]


def _folders(stamps: dict[str, str]) -> list[list[Any]]:
    """site-packages and its like: anything that is installed or removed changes their time."""
    found = {os.path.dirname(os.path.dirname(stamp.rsplit(" ", 2)[0])) for stamp in stamps.values()}
    return [[folder, _stat(folder)] for folder in sorted(found)]


def _agent() -> Any:
    name = archive.name()
    if name != "dev":
        return name
    files = sorted((archive.ROOT / "eagle3_agent").rglob("*.py"))
    return [[str(file), _stat(str(file))] for file in files]


def _stat(path: str) -> list[int]:
    try:
        seen = os.stat(path)
    except OSError:
        return []
    return [seen.st_size, seen.st_mtime_ns]


def _environment(profile: Profile) -> list[list[str]]:
    own = profile.host.env
    return [
        [name, value]
        for name, value in sorted(worker_env(profile).items())
        if name in own or name in _EXACTLY or name.startswith(_BEARING)
    ]


def _model(path: str) -> list[Any]:
    """config.json by content, every file by name, size and time."""
    try:
        with open(os.path.join(path, "config.json"), "rb") as file:
            config = hashlib.sha256(file.read(_CONFIG)).hexdigest()
        names = sorted(os.listdir(path))[:_ENTRIES]
    except OSError as error:
        return [str(error)]
    return [config, *([name, _stat(os.path.join(path, name))] for name in names)]
