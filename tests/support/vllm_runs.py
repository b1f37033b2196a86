"""A run on the real vLLM from its supervisor to its verification, without an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from eagle3_agent import runs
from eagle3_agent.protocol.values import Profile, VerifyReport
from eagle3_agent.runs import RunFolder

from . import vllm_env


def supervised(profile: Profile, timeout: float) -> RunFolder:
    """The run of ``profile``, ended, whatever became of it."""
    folder = runs.create(profile, profile.engine.name, attempt=1)
    command = [sys.executable, "-E", "-s", str(vllm_env.AGENT), "supervise", str(folder.path)]
    subprocess.run(command, check=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return folder


def verified(folder: RunFolder, report: Path) -> VerifyReport:
    command = [str(vllm_env.interpreter()), "-m", "eagle3_agent.worker", "verify"]
    subprocess.run(
        [*command, str(folder.path), "--samples", "2", "--report", str(report)],
        env={**vllm_env.environment(), "EAGLE3_HOME": os.environ["EAGLE3_HOME"]},
        check=True,
        timeout=120,
    )
    return runs.read_value(report, VerifyReport)
