"""A scripted host, and the real agent on this machine, for tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_console import demo
from support import needs, tiny
from support.cli import PROFILE_TEXT, Bench, bench
from support.local import Local


@pytest.fixture
def host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Bench:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))
    return bench(capsys, monkeypatch)


@pytest.fixture
def profile_path(tmp_path: Path) -> str:
    path = tmp_path / "kimi.toml"
    path.write_text(PROFILE_TEXT)
    return str(path)


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


@pytest.fixture
def local(_own_home: Path, tmp_path: Path) -> Iterator[Local]:
    """The real command line and the real agent on this machine, in a home of their own."""
    made = Local(_own_home, tmp_path)
    yield made
    made.close()
