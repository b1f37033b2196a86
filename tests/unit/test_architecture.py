"""The directions of imports, proved from outside: contracts, and what a fresh interpreter loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: module -> what must not be in ``sys.modules`` after importing it
FORBIDDEN = {
    "eagle3_agent.protocol": ("asyncio", "subprocess", "textual", "asyncssh", "torch"),
    "eagle3_agent.server": (
        "textual",
        "asyncssh",
        "tomlkit",
        "torch",
        "vllm",
        "eagle3_agent.worker",
    ),
    "eagle3_agent.supervisor": ("textual", "asyncssh", "torch", "vllm", "eagle3_agent.worker"),
    "eagle3_agent.preflight": ("textual", "asyncssh", "torch", "vllm", "eagle3_agent.worker"),
    "eagle3_agent.worker": ("textual", "asyncssh", "torch", "vllm", "transformers"),
    "eagle3_console.store": ("textual", "asyncssh", "eagle3_console.link"),
    "eagle3_console.profile": ("textual", "asyncssh"),
    "eagle3_console.link": ("textual", "asyncssh", "eagle3_agent.server", "eagle3_agent.runs"),
    "eagle3_console.cli": ("textual", "torch", "eagle3_agent.server", "eagle3_agent.runs"),
    "eagle3_console.app": ("asyncssh", "eagle3_agent.server", "eagle3_agent.runs"),
}


@pytest.mark.parametrize("module", sorted(FORBIDDEN))
def test_a_module_loads_nothing_from_above_it(module: str) -> None:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert module in loaded
    assert [name for name in FORBIDDEN[module] if name in loaded] == []


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
