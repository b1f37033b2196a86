"""A temporary home for each test; everything started under it is ended after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemon import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()
