"""How a vLLM worker's death is told, with real processes in the worker's place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

import pytest

from eagle3_agent.worker.compat import errors


def close_and_wait() -> None:
    """What the kernel does to a killed process that still gives its GPU memory back."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # forked: the tests' own handler is there
    os.closerange(3, 256)
    signal.pause()


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=close_and_wait, daemon=True)
    process.start()
    assert connection.wait([process.sentinel], timeout=30)
    assert process.exitcode is None
    monkeypatch.setattr(errors, "_processes", {1: process})
    return process


def test_a_worker_that_is_slow_to_leave_is_waited_for(
    leaving: multiprocessing.process.BaseProcess,
) -> None:
    timer = threading.Timer(0.3, leaving.kill)
    timer.start()
    assert errors._dead() == "vLLM's worker of rank 1 died: killed by SIGKILL (out of memory?)"


def test_a_worker_that_was_asked_to_end_is_not_the_cause(
    leaving: multiprocessing.process.BaseProcess,
) -> None:
    leaving.terminate()
    assert errors._dead() == ""


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (128 + signal.SIGTERM, ""),
        (1, "vLLM's worker of rank 0 died: exit status 1"),
    ],
)
def test_a_status_that_says_asked_to_end_is_not_the_cause(
    monkeypatch: pytest.MonkeyPatch, status: int, told: str
) -> None:
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(status,))
    process.start()
    assert connection.wait([process.sentinel], timeout=30)
    monkeypatch.setattr(errors, "_processes", {0: process})
    assert errors._dead() == told


def test_a_worker_that_lives_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    process.start()
    monkeypatch.setattr(errors, "_processes", {0: process})
    assert errors._dead() == ""
    assert process.is_alive()
    process.kill()
    process.join()
