"""Run a script under one of the vLLM environments and read what it found; used by tests/vllm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "vllm" / "scripts"
AGENT = ROOT / "agent"
ENVIRONMENTS = ROOT / ".venvs"

#: What ``make vllm-env`` makes.
Version = Literal["0.16", "0.32"]
Library = Literal["0.4", "0.9"]

#: What an interpreter needs to run vLLM here: no hub, a small cache, threads that do not spin.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_MLA_DISABLE": "1",  # vLLM 0.16 has no MLA on the CPU
}
#: The same for vLLM 0.32, where MLA works on the CPU.
ENVIRONMENT_0_32 = {k: v for k, v in ENVIRONMENT.items() if k != "VLLM_MLA_DISABLE"}


def interpreter(version: Version = "0.16") -> Path:
    """The environment with that vLLM; 0.16 also holds speculators 0.3.0."""
    return ENVIRONMENTS / f"vllm-{version}" / "bin" / "python"


def library(speculators: Library) -> Path:
    """The folder to put before the path: 0.4 fits the environment 0.16, 0.9 fits 0.32."""
    return ENVIRONMENTS / f"speculators-{speculators}"


def environment(version: Version = "0.16", speculators: Library | None = None) -> dict[str, str]:
    """The variables of a process that runs vLLM here, the agent and the tests on its path."""
    paths = [str(AGENT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    if speculators is not None:
        paths.insert(0, str(library(speculators)))
    settings = ENVIRONMENT if version == "0.16" else ENVIRONMENT_0_32
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_script(
    name: str,
    folder: Path,
    *arguments: str,
    timeout: float = 240,
    variables: Mapping[str, str] | None = None,
    version: Version = "0.16",
    speculators: Library | None = None,
) -> dict[str, Any]:
    """Run scripts/NAME with a file to write its JSON object to; fails with the output's tail."""
    report = folder / f"{name}.json"
    command = [str(interpreter(version)), str(SCRIPTS / name), str(report), str(folder), *arguments]
    with (folder / f"{name}.log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            env={**environment(version, speculators), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session is the script's alone
            process.wait()
            code = f"none within {timeout} s"
        log.seek(0)
        tail = log.read().decode(errors="replace")[-6000:]
    assert code == 0, f"{name}: exit status {code}\n{tail}"
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found
