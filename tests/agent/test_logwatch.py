"""Shards read off a worker's output, however it is cut and whatever stands between."""

from __future__ import annotations

import pytest

from eagle3_agent.logwatch import LoadWatcher

VLLM = (
    b"INFO 11-30 loading\n"
    b"\rLoading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n"
    b"\r(Worker_TP0 pid=9) Loading safetensors checkpoint shards:   2% Completed | 1/64 "
    b"[00:17<18:01, 17.1s/it]\n"
    b"\r(Worker_TP0 pid=9) Loading safetensors checkpoint shards: 100% Completed | 64/64 "
    b"[18:02<00:00, 16.9s/it]\n"
    b"(Worker_TP0 pid=9) INFO Loading weights took 1082.31 seconds\n"
)


def feed(data: bytes, cuts: list[int]) -> list[tuple[int, int]]:
    watcher = LoadWatcher()
    found: list[tuple[int, int]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=False):
        found += watcher.feed(data[begin:end])
    return found


def test_vllms_bar() -> None:
    assert feed(VLLM, []) == [(0, 64), (1, 64), (64, 64)]


@pytest.mark.parametrize("step", [2, 3, 7, 31, 64, 97, 128, 200, 333])
def test_wherever_the_reads_cut_it(step: int) -> None:
    cuts = list(range(step, len(VLLM), step))
    assert feed(VLLM, cuts) == [(0, 64), (1, 64), (64, 64)]


def test_byte_by_byte() -> None:
    assert feed(VLLM, list(range(1, len(VLLM)))) == [(0, 64), (1, 64), (64, 64)]


def test_transformers_bar_and_a_line_without_end() -> None:
    bar = "\rLoading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.2s/it]".encode()
    assert feed(bar, []) == [(1, 2)]


def test_a_huge_line_costs_little_and_hides_nothing() -> None:
    watcher = LoadWatcher()
    for _ in range(80):
        assert watcher.feed(b"\xff\x00x" * 21_845) == []
        assert len(watcher._rest) <= 512
    assert watcher.feed(b"\rLoading pt checkpoint shards:  50% Completed | 1/2 [0") == [(1, 2)]


@pytest.mark.parametrize(
    "line",
    [
        b"Loading safetensors checkpoint shards: 50% Completed | 3/2 [00:00]",
        b"Loading safetensors checkpoint shards: 0% Completed | 0/0 [00:00]",
        b"Loading safetensors checkpoint shards: 50% Completed | 99999999999/2 [00:00]",
        b"Loading something else: 50% | 1/2 [00:00]",
        b"Rendering conversations:  50%|#####     | 1/2 [00:00<00:00]",
    ],
)
def test_what_is_not_a_sane_bar_is_ignored(line: bytes) -> None:
    assert feed(line + b"\n", []) == []
