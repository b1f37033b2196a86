"""Fixtures of the worker's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import tiny


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter with torch and transformers."""
    found = tiny.worker_python()
    if found is None:
        text = "no interpreter with torch: run `make demo-env` or set EAGLE3_WORKER_PYTHON"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return found


@pytest.fixture(scope="session")
def models(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tiny.Kind, Path]:
    root = tmp_path_factory.mktemp("models")
    return tiny.build(python, root, ("llama", "llama-bf16", "qwen3", "moe", "nan"))
