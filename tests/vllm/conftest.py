"""Every test here needs the environment that ``make vllm-env`` makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import vllm_env

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(autouse=True)
def _environment() -> None:
    if os.access(vllm_env.interpreter(), os.X_OK):
        return
    text = f"{vllm_env.interpreter()} is not there: make vllm-env"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)
