"""What is told of an exception: real ones, raised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle3_agent.protocol import encode
from eagle3_agent.protocol.events import Failure
from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.worker import failure
from eagle3_agent.worker.errors import OutputError


def told(raises: Callable[[], object]) -> ErrorInfo:
    try:
        raises()
    except BaseException as error:
        return failure.describe(error)
    raise AssertionError("nothing was raised")


def bare() -> None:
    raise AssertionError


def test_an_empty_message_still_names_type_and_line() -> None:
    found = told(bare)
    assert (found.type, found.message) == ("AssertionError", "")
    assert found.where is not None
    assert found.where.file == __file__
    assert (found.where.function, found.where.source) == ("bare", "raise AssertionError")
    assert "raise AssertionError" in found.traceback


def test_glue_is_not_where_it_happened() -> None:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield

    def body() -> None:
        with around():
            raise ValueError("inside")

    found = told(body)
    assert found.where is not None
    assert found.where.source == 'raise ValueError("inside")'

    def pooled() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(bare).result()

    assert told(pooled).where is not None
    assert told(pooled).where.source == "raise AssertionError"  # type: ignore[union-attr]


def test_torch_glue_is_passed_over(tmp_path: Path) -> None:
    glue = tmp_path / "torch" / "nn" / "modules" / "module.py"
    glue.parent.mkdir(parents=True)
    glue.write_text("def call():\n    raise RuntimeError('shape')\n")
    space: dict[str, Callable[[], object]] = {}
    exec(compile(glue.read_text(), str(glue), "exec"), space)  # noqa: S102
    found = told(lambda: space["call"]())
    assert found.where is not None
    assert found.where.file == __file__


def test_known_errors_go_by_their_short_name_and_foreign_ones_by_their_module() -> None:
    def known() -> None:
        raise OutputError("full")

    def foreign() -> None:
        ThreadPoolExecutor(0)

    assert told(known).type == "OutputError"
    assert told(foreign).type == "ValueError"

    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError("x")

    def odd() -> None:
        raise Odd

    assert told(odd).type.endswith("Odd")
    assert told(odd).message == "(its text cannot be read: KeyError)"


def test_the_cause_of_an_error_is_in_the_traceback() -> None:
    def chained() -> None:
        try:
            bare()
        except AssertionError as error:
            raise RuntimeError("load failed") from error

    found = told(chained)
    assert found.message == "load failed"
    assert "raise AssertionError" in found.traceback


def test_ranks_are_found_where_they_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker() -> None:
        raise RuntimeError("Worker_TP3 died unexpectedly")

    def plain() -> None:
        raise RuntimeError("oops")

    assert told(worker).rank == 3
    monkeypatch.delenv("RANK", raising=False)
    assert told(plain).rank is None
    monkeypatch.setenv("RANK", "5")
    assert told(plain).rank == 5


def test_an_endless_traceback_is_bounded_and_keeps_its_end() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise RuntimeError("x" * 10_000_000)
        deep(n - 1)

    found = told(lambda: deep(300))
    assert len(found.traceback) < 210_000
    assert len(found.message) < 21_000
    assert found.traceback.startswith("Traceback")
    assert encode(Failure(0.0, found))
