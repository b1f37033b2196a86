"""Run a script under the vLLM environment and read what it found; used by tests/vllm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "vllm" / "scripts"
AGENT = ROOT / "agent"

#: What an interpreter needs to run vLLM here: no hub, a small cache, the agent and the scripts.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_MLA_DISABLE": "1",  # vLLM 0.16 has no MLA on the CPU
}


def interpreter() -> Path:
    """Where ``make vllm-env`` puts it; ``EAGLE3_VLLM_PYTHON`` names another."""
    named = os.environ.get("EAGLE3_VLLM_PYTHON")
    return Path(named) if named else ROOT / ".venvs" / "vllm-0.16" / "bin" / "python"


def environment() -> dict[str, str]:
    paths = [str(AGENT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_script(
    name: str,
    folder: Path,
    *arguments: str,
    timeout: float = 240,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run scripts/NAME with a file to write its JSON object to; fails with the output's tail."""
    report = folder / f"{name}.json"
    command = [str(interpreter()), str(SCRIPTS / name), str(report), str(folder), *arguments]
    with (folder / f"{name}.log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            env={**environment(), **(variables or {})},
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
