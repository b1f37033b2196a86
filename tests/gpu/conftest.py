"""The NVML double, compiled once; without a C compiler these tests cannot run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import needs, nvml_double


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        needs.missing("gcc is missing: it compiles the double of libnvidia-ml.so.1")
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))
