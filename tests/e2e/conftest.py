"""A real sshd, an engineer's workstation before it, and the real Pythons with torch and vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3_console import demo
from support import needs, sshd, tiny
from support.sshd import Sshd
from support.workstation import Workstation


@pytest.fixture(autouse=True)
def _openssh() -> None:
    sshd.require_openssh()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Makes servers that are not yet started."""
    yield from sshd.servers(tmp_path)


@pytest.fixture
def stranger(make: Callable[..., Sshd], tmp_path: Path) -> Iterator[Workstation]:
    """A workstation that never spoke to the host: its key is unknown."""
    made = Workstation(tmp_path, make().start())
    yield made
    made.close()


@pytest.fixture
def desk(stranger: Workstation) -> Workstation:
    """A workstation that knows the host."""
    stranger.know_host()
    return stranger


@pytest.fixture(scope="session")
def worker_python() -> Path:
    """The interpreter with torch and transformers."""
    return needs.worker_python()


@pytest.fixture(scope="session")
def tiny_model(worker_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six random layers of hidden size 32."""
    return tiny.build(worker_python, tmp_path_factory.mktemp("models"), ("llama",))["llama"]


@pytest.fixture(scope="session")
def made_demo() -> demo.DemoFiles:
    """What `make demo-env` made in the user's own cache folder."""
    return needs.made_demo()


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter with vLLM 0.16.0 and speculators 0.3.0."""
    return needs.vllm_python()
