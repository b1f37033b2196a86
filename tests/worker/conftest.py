"""Fixtures of the worker's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import needs, tiny


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter with torch and transformers."""
    return needs.worker_python()


@pytest.fixture(scope="session")
def models(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tiny.Kind, Path]:
    root = tmp_path_factory.mktemp("models")
    return tiny.build(python, root, ("llama", "llama-bf16", "qwen3", "moe", "nan"))
