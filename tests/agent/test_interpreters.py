"""The agent on every Python that it promises: imports, ``version`` and a run from start to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_agent.protocol.messages import Ping, Pong
from support.daemon import AGENT, Home

VERSIONS = ("3.10", "3.11", "3.12", "3.13")

_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import eagle3_agent
for found in pkgutil.walk_packages(eagle3_agent.__path__, "eagle3_agent."):
    if ".worker" not in found.name and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(len([m for m in sys.modules if m.startswith("eagle3_agent")]))
"""

_FOREIGN = ("torch", "transformers", "vllm", "textual", "asyncssh", "rich", "tomlkit")

_SERVER_ONLY = """
import sys
sys.path.insert(0, sys.argv[1])
import eagle3_agent.server.daemon, eagle3_agent.supervisor, eagle3_agent.attach
print(*sorted(m for m in sys.modules))
"""


def interpreter(version: str) -> str:
    """The path of a Python of this version; skips, or fails in CI where 3.11 must be there."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    found = shutil.which(f"python{version}")
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    under = [p for h in homes for p in sorted(h.glob(f"versions/{version}.*/bin/python"))]
    for candidate in [*map(str, under), *([found] if found else [])]:
        said = subprocess.run([candidate, "-V"], capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return candidate
    if os.environ.get("CI") == "true" and version == "3.11":
        pytest.fail("Python 3.11 is missing")
    pytest.skip(f"not on this machine: Python {version}")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_whole_agent_imports_and_says_its_version(version: str) -> None:
    python = interpreter(version)
    argv = [python, "-E", "-s", "-W", "error::SyntaxWarning", "-c", _IMPORT_ALL, str(AGENT)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
    argv = [python, "-E", "-s", str(AGENT), "version"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"python {version}." in said.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_from_start_to_end(version: str, tmp_path: Path) -> None:
    home = Home(tmp_path, python=interpreter(version))
    try:
        wire = home.attach(hello=False)
        assert wire.hello().python.startswith(f"{version}.")
        assert isinstance(wire.ask(Ping(0)), Pong)
        run = wire.start(home.profile())
        wire.ended(run, "completed")
        assert wire.whole(run, "output") == home.run(run).output.read_bytes()
    finally:
        home.close()


def test_the_agent_imports_nothing_foreign() -> None:
    argv = [sys.executable, "-c", _SERVER_ONLY, str(AGENT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "eagle3_agent.server.daemon" in loaded
    assert not [m for m in loaded if m.split(".")[0] in _FOREIGN]
    assert not [m for m in loaded if m.startswith("eagle3_agent.worker")]
    standard = {*sys.stdlib_module_names, "eagle3_agent", "__main__"}
    at_start = _modules("import sys; print(*sys.modules)")
    assert {m.split(".")[0] for m in loaded} - standard <= at_start


def _modules(code: str) -> set[str]:
    """What this interpreter loads by itself: hooks of its site-packages."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}
