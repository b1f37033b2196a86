"""How workers are called: in order, beside the engine's thread, and every rank's error counts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.worker.compat.driver import call
from eagle3_agent.worker.compat.errors import RemoteError
from eagle3_agent.worker.engines.lane import Lane


def _executor(*replies: Any) -> Any:
    return SimpleNamespace(collective_rpc=lambda method, args, timeout: list(replies))


def test_the_error_of_any_rank_is_raised() -> None:
    fine = SimpleNamespace(error=None)
    assert call(_executor(fine, fine), "eagle3_step") == [fine, fine]
    failed = SimpleNamespace(error=ErrorInfo("ValueError", "too many", rank=1))
    with pytest.raises(RemoteError, match="worker of rank 1: ValueError: too many"):
        call(_executor(fine, failed), "eagle3_step")


def test_a_lane_keeps_the_order_and_hands_errors_on() -> None:
    lane = Lane("test-lane")
    seen: list[int] = []
    opened = threading.Event()
    first = lane.submit(opened.wait, 30)
    others = [lane.submit(seen.append, n) for n in range(5)]
    assert not any(future.done() for future in [first, *others])
    failing = lane.submit(int, "no number")
    opened.set()
    with pytest.raises(ValueError, match="no number"):
        failing.result(30)
    assert seen == [0, 1, 2, 3, 4]
    thread = next(t for t in threading.enumerate() if t.name == "test-lane")
    lane.close()
    thread.join(30)
    assert not thread.is_alive()
