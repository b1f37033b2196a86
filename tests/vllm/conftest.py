"""Every test here needs the environment that ``make vllm-env`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import needs

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(autouse=True)
def _environment() -> None:
    needs.vllm_python()
