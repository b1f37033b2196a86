"""What a test needs of the machine: found, or the test is skipped; on CI it fails instead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from eagle3_console import demo

from . import tiny, vllm_env


def missing(text: str) -> NoReturn:
    """End the test: ``text`` says what is not there and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def worker_python() -> Path:
    """The interpreter with torch and transformers."""
    found = tiny.worker_python()
    if found is None:
        missing("no interpreter with torch: run `make demo-env` or set EAGLE3_WORKER_PYTHON")
    return found


def made_demo() -> demo.DemoFiles:
    """What `make demo-env` made in the user's own cache folder."""
    found = demo.files()
    if not (found.root / "model.ready").exists():
        missing("the demo is not made: run `make demo-env`")
    return found


def vllm_python(
    version: vllm_env.Version = "0.16", speculators: vllm_env.Library | None = None
) -> Path:
    """The interpreter with that vLLM (0.16 has speculators 0.3.0), and the folder beside it."""
    found = vllm_env.interpreter(version)
    wanted = [found] if speculators is None else [found, vllm_env.library(speculators)]
    for path in wanted:
        if not os.access(path, os.X_OK):
            missing(f"{path} is not there: make vllm-env")
    return found
