"""Which samples are recomputed, by what reference, and what is allowed: pure, without a model."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.model_info import ModelInfo
from eagle3_agent.worker.verification import compare, reference
from eagle3_agent.worker.verification.choose import choose, new_seed
from eagle3_agent.worker.verification.job import neighbours

_GIB = 1 << 30


def _entry(index: int, tokens: int) -> Entry:
    return Entry(index, f"data_{index}.pt", tokens, 1, "", "bfloat16", 3, 32, "", "")


_ENTRIES = [_entry(i, tokens) for i, tokens in enumerate((9, 40, 7, 80, 80, 7, 30, 12, 55, 20))]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10, 99])
@pytest.mark.parametrize("seed", [0, 1, 424242])
def test_the_longest_and_the_shortest_are_always_chosen(count: int, seed: int) -> None:
    chosen = choose(_ENTRIES, count, seed)
    roles = {c.entry.index: c.role for c in chosen}
    assert (roles[3], roles[2]) == ("longest", "shortest")
    assert len(chosen) == min(max(count, 2), len(_ENTRIES))
    assert [c.entry.index for c in chosen] == sorted(roles)
    assert chosen == choose(_ENTRIES, count, seed)


def test_another_seed_draws_others() -> None:
    drawn = {tuple(c.entry.index for c in choose(_ENTRIES, 5, seed)) for seed in range(20)}
    assert len(drawn) > 5
    assert {index for some in drawn for index in some} == set(range(10))
    assert len({new_seed() for _ in range(50)}) > 25


def test_none_are_chosen_of_none_or_when_none_are_asked() -> None:
    assert choose([], 3, 0) == choose(_ENTRIES, 0, 0) == []
    assert [c.role for c in choose([_entry(4, 9)], 1, 0)] == ["longest"]


def test_neighbours_are_near_by_place_and_by_length() -> None:
    found = neighbours(_ENTRIES, _ENTRIES[3], 4)
    assert 3 not in found
    assert 4 in found[:2]  # beside it, and as long
    assert len(neighbours(_ENTRIES, _ENTRIES[3], 99)) == len(_ENTRIES) - 1


# ---------------------------------------------------------------- the reference


def _info(folder: Path, config: Mapping[str, object], size: int, width: float) -> ModelInfo:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelInfo(folder, 4096, 32, 128256, "bfloat16", 0, size, width, "")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the host has free, in GiB."""
    host = SimpleNamespace(gib=1024.0)
    monkeypatch.setattr(reference, "available", lambda: int(host.gib * _GIB))
    return host


def test_the_need_is_weights_states_and_a_gib(tmp_path: Path) -> None:
    info = _info(tmp_path, {}, 16 * _GIB, 2)
    states = 33 * 2048 * 4096
    assert reference.need(info, "float32", 2048) == int(32 * _GIB * 1.1) + states * 4 + _GIB
    assert reference.need(info, "bfloat16", 2048) == int(16 * _GIB * 1.1) + states * 2 + _GIB


@pytest.mark.parametrize(
    ("gib", "asked", "dtype"),
    [
        (64, "auto", "float32"),
        (30, "auto", "bfloat16"),
        (64, "checkpoint", "bfloat16"),
        (64, "float32", "float32"),
    ],
)
def test_the_best_dtype_that_fits_is_taken(
    tmp_path: Path, free: SimpleNamespace, gib: float, asked: str, dtype: str
) -> None:
    free.gib = gib
    info = _info(tmp_path, {}, 16 * _GIB, 2)
    assert reference.choose_dtype(info, asked, 2048) == dtype  # type: ignore[arg-type]


def test_without_room_the_arithmetic_is_said(tmp_path: Path, free: SimpleNamespace) -> None:
    free.gib = 10
    info = _info(tmp_path, {}, 16 * _GIB, 2)
    told = r"needs 37 GiB in float32 and 19 GiB in bfloat16 .* the host has 10 GiB free"
    with pytest.raises(reference.NoReference, match=told):
        reference.choose_dtype(info, "auto", 2048)
    with pytest.raises(reference.NoReference, match="--dtype checkpoint needs less"):
        reference.choose_dtype(info, "float32", 2048)


def test_a_quantised_checkpoint_is_held_twice(
    tmp_path: Path, free: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised = {"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}}
    info = _info(tmp_path, quantised, 540 * _GIB, 0.5)
    assert reference.quantisation(tmp_path) == "compressed-tensors"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(reference.NoReference, match="compressed_tensors is not installed"):
        reference.choose_dtype(info, "auto", 2048)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(reference.NoReference, match="needs 2972 GiB in bfloat16"):
        reference.choose_dtype(info, "auto", 2048)
    free.gib = 3000
    assert reference.choose_dtype(info, "auto", 2048) == "bfloat16"


# ---------------------------------------------------------------- what is allowed


def test_tolerances_add_in_quadrature_and_widen_for_short_samples() -> None:
    assert compare.tolerance("bfloat16", "float32") == pytest.approx(0.04)
    assert compare.tolerance("bfloat16", "bfloat16") == pytest.approx(0.04 * 2**0.5)
    assert compare.tolerance("float32", "float32") == pytest.approx(1e-5)
    assert compare.limits("bfloat16", "float32", 1, experts=False).median == pytest.approx(0.28)
    assert compare.limits("bfloat16", "float32", 600, experts=False).median < 0.041
    assert compare.limits("float32", "float32", 1, experts=True) == compare.Limits(1e-5, False)
    assert compare.limits("bfloat16", "float32", 9, experts=True).routed


class _Gpus:
    """What is asked of ``torch.cuda``; a GPU that is lost raises."""

    def __init__(self, *memory: tuple[int, int] | None) -> None:
        self._memory = memory

    def is_available(self) -> bool:
        return bool(self._memory)

    def device_count(self) -> int:
        return len(self._memory)

    def mem_get_info(self, number: int) -> tuple[int, int]:
        found = self._memory[number]
        if found is None:
            raise RuntimeError("CUDA error: device is lost")
        return found


@pytest.mark.parametrize(
    ("gpus", "chosen"),
    [
        (_Gpus(), None),
        (_Gpus((79 * _GIB, 80 * _GIB)), "cuda:0"),
        (_Gpus((60 * _GIB, 80 * _GIB), (79 * _GIB, 80 * _GIB)), "cuda:1"),
        (_Gpus(None, (79 * _GIB, 80 * _GIB)), "cuda:1"),
        (_Gpus((31 * _GIB, 32 * _GIB)), None),
        (_Gpus((70 * _GIB, 80 * _GIB)), None),
    ],
    ids=["no-gpu", "idle", "first-is-used", "first-is-lost", "too-small", "all-used"],
)
def test_the_reference_takes_an_idle_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, gpus: _Gpus, chosen: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpus))
    assert reference.idle_gpu(40 * _GIB) == chosen


def _difference(tokens: int, **found: int) -> compare.Difference:
    counts = {"outliers": 0, "crowd": 0, "strange": 0, "empty": 0, "misplaced": 0, **found}
    return compare.Difference(tokens=tokens, median=0.015, worst=1.2, factor=1.0, **counts)


@pytest.mark.parametrize("kind", ["misplaced", "strange", "outliers"])
def test_a_few_tokens_of_a_mixture_of_experts_may_flip(kind: str) -> None:
    few, many = _difference(2048, **{kind: 6}), _difference(2048, **{kind: 200})
    routed = compare.limits("bfloat16", "float32", 2048, experts=True)
    dense = compare.limits("bfloat16", "float32", 2048, experts=False)
    assert compare.verdict(few, routed) == ""
    assert compare.verdict(few, dense) != ""
    assert compare.verdict(many, routed) != ""
