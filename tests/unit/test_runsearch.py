"""The history's filter and order."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_agent.protocol.values import ErrorInfo, Samples
from eagle3_console import runsearch
from support.cli import summary

NOW = 1_000_000.0
OOM = ErrorInfo("torch.OutOfMemoryError", "CUDA out of memory")
RUNS = [
    summary("completed", run="0001", number=1, model="/m/kimi-k2.5", profile="kimi",
            started=NOW - 9000, ended=NOW - 1800, tokens_per_second=9500.0,
            samples=Samples(1000, 1000, 0)),
    summary("failed", run="0002", number=2, model="/m/kimi-k2.5", profile="kimi",
            started=NOW - 600, ended=NOW - 540, tokens_per_second=None, error=OOM,
            samples=Samples(1000, 0, 0)),
    summary("running", run="0003", number=3, model="/m/llama-8b", profile="llama",
            started=NOW - 60, ended=None, tokens_per_second=42_000.0,
            samples=Samples(100, 40, 2)),
    summary("queued", run="0012", number=12, model="/m/llama-8b", profile="llama",
            started=None, ended=None, tokens_per_second=None, samples=Samples(None, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("", [1, 2, 3, 12]),
        ("kimi", [1, 2]),
        ("KIMI failed", [2]),
        ("state:failed", [2]),
        ("is:running", [3]),
        ("model:llama -queued", [3]),
        ("!kimi", [3, 12]),
        ("-state:failed -state:queued", [1, 3]),
        ("memory", [2]),
        ("cause:outofmemory", [2]),
        ("tok/s>9k", [1, 3]),
        ("tok/s>9500", [3]),
        ("tok/s>=9500", [1, 3]),
        ("took>1h30m", [1]),
        ("took<2min", [2, 3]),
        ("took<90", [2, 3]),
        ("age<1d", [1, 2, 3]),
        ("samples<50", [2, 3, 12]),
        ("skipped>0", [3]),
        ("run=2", [2]),
        ("0012", [12]),
        ("run:0012", [12]),
        ("nothing like it", []),
        ("tok/s>fast", []),
    ],
)
def test_what_is_shown(said: str, numbers: list[int]) -> None:
    found = runsearch.select(RUNS, runsearch.parse(said), NOW)
    assert [r.number for r in found] == numbers


def test_a_comparison_that_is_none_is_told() -> None:
    assert runsearch.parse("tok/s>fast kimi").unclear == ("tok/s>fast",)
    assert runsearch.parse("tok/s>9k kimi").unclear == ()


@pytest.mark.parametrize(
    ("column", "reverse", "numbers"),
    [
        ("run", True, [12, 3, 2, 1]),
        ("run", False, [1, 2, 3, 12]),
        ("tok/s", True, [3, 1, 12, 2]),
        ("tok/s", False, [1, 3, 12, 2]),
        ("took", False, [3, 2, 1, 12]),
        ("model", False, [2, 1, 12, 3]),
        ("state", False, [1, 2, 12, 3]),
        ("started", True, [3, 2, 1, 12]),
        ("samples", True, [1, 3, 12, 2]),
    ],
)
def test_the_order(column: runsearch.Column, reverse: bool, numbers: list[int]) -> None:
    found = runsearch.ordered(RUNS, column, NOW, reverse=reverse)
    assert [r.number for r in found] == numbers


def test_every_column_can_be_sorted_by() -> None:
    for column in runsearch.COLUMNS:
        assert len(runsearch.ordered(RUNS, column, NOW)) == len(RUNS)


@given(st.text(max_size=60))
def test_any_text_is_a_filter(said: str) -> None:
    wanted = runsearch.parse(said)
    assert set(runsearch.select(RUNS, wanted, NOW)) <= set(RUNS)


def test_a_run_that_changed_is_searched_as_it_is_now() -> None:
    run = summary("running", run="0007", number=7)
    assert runsearch.select([run], runsearch.parse("running"), NOW)
    ended = replace(run, state="failed", cause="NCCL timed out on rank 3")
    assert not runsearch.select([ended], runsearch.parse("running"), NOW)
    assert runsearch.select([ended], runsearch.parse("nccl failed"), NOW)
    assert runsearch.select([ended], runsearch.parse("cause:nccl"), NOW)


def test_ten_thousand_runs_are_filtered_and_ordered_within_a_keys_time() -> None:
    """In CPU time, that another process may not spoil: 50 ms a key, and the same for an order."""
    runs = [replace(RUNS[i % 4], run=f"{i:05d}", number=i) for i in range(10_000)]
    runsearch.select(runs, runsearch.parse("k"), NOW)  # the first key reads every line
    for said in ("ki", "kimi", "kimi -failed", "kimi tok/s>4k took<3h", "nothing like it"):
        began = time.process_time()
        runsearch.select(runs, runsearch.parse(said), NOW)
        assert time.process_time() - began < 0.05, said
    for column in runsearch.COLUMNS:
        began = time.process_time()
        runsearch.ordered(runs, column, NOW, reverse=True)
        assert time.process_time() - began < 0.05, column
