"""The watch that goes on while a library's call takes its time."""

from __future__ import annotations

import threading

import pytest

from eagle3_agent.worker.engines.ticker import Ticker


def test_a_long_call_is_watched_and_nothing_is_outside_of_calls() -> None:
    inside = threading.Event()
    calls = []
    third = threading.Event()

    def watch() -> None:
        calls.append(inside.is_set())
        if len(calls) == 3:
            third.set()

    def long() -> bool:
        inside.set()
        try:
            return third.wait(30)
        finally:
            inside.clear()

    with Ticker(watch) as ticker:
        assert ticker.during(long)
        seen = len(calls)
        # no call is running: three periods bring none
        assert not threading.Event().wait(0.7)
        assert len(calls) == seen
    assert all(calls)


def test_many_short_calls_are_watched_too() -> None:
    calls = []
    with Ticker(lambda: calls.append(1)) as ticker:
        while len(calls) < 3:
            ticker.during(lambda: None)


def test_what_the_watch_raises_is_raised_by_the_call() -> None:
    raised = threading.Event()

    def watch() -> None:
        raised.set()
        raise OSError("the disk is full")

    with Ticker(watch) as ticker:
        with pytest.raises(OSError, match="disk is full"):
            ticker.during(lambda: raised.wait(30))
        # and by every later one
        with pytest.raises(OSError, match="disk is full"):
            ticker.during(lambda: None)


def test_the_watch_s_error_is_told_before_the_call_s_own() -> None:
    raised = threading.Event()

    def watch() -> None:
        raised.set()
        raise OSError("the cause")

    def fail() -> None:
        raised.wait(30)
        raise RuntimeError("what followed")

    with Ticker(watch) as ticker, pytest.raises(OSError, match="the cause") as error:
        ticker.during(fail)
    assert isinstance(error.value.__context__, RuntimeError)
