"""A scripted host for every test of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import PROFILE_TEXT, Bench, bench


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
