"""The bench package lies in the checkout's root, which is on nobody's path; its command line takes
over signals of its process, which here is the tests' own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    # last, so that nothing else is found there first
    sys.path.append(ROOT)


@pytest.fixture(autouse=True)
def _signals_given_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
