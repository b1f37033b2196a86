"""Measuring extraction: sides as processes, what a model costs, and the table of a host's run."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bench.extraction import models, spec, turns
from bench.extraction.models import SHAPES, Shape

from bench import extract_gpu


def config_folder(folder: Path, name: str = "tiny", **changes: Any) -> Path:
    values = {**models.config(SHAPES[name]), **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def made_spec(tmp_path: Path, side: str) -> spec.Spec:
    rows = tmp_path / "rows.jsonl"
    spec.write_rows(rows, spec.made_up(5, 3, 9, 512))
    model = str(config_folder(tmp_path))
    out = str(tmp_path / "out")
    return spec.Spec(side, model, str(rows), out, layers=(1, 3), longest=9, threads=2)


def test_a_spec_survives_its_line_and_rows_are_the_same_in_every_run(tmp_path: Path) -> None:
    made = made_spec(tmp_path, "disk")
    assert spec.Spec.read(made.line()) == made
    data = spec.rows(made.data)
    assert data == spec.made_up(5, 3, 9, 512)
    assert {len(row) for row in data} <= set(range(3, 10))
    assert all(0 <= token < 512 for row in data for token in row)


def test_a_models_cost_is_that_of_its_matrices_and_its_attention(tmp_path: Path) -> None:
    shape = Shape.of(config_folder(tmp_path, "8b"))
    assert shape == SHAPES["8b"]
    matrices = [size for name, size in models.tensors(shape) if len(size) == 2 and "layers" in name]
    assert shape.weights == sum(a * b for a, b in matrices) == 6_979_321_856
    assert shape.flops([1]) == 2 * shape.weights + 4 * 32 * 32 * 128
    assert shape.flops([2, 2]) == 4 * 2 * shape.weights + 4 * 32 * 32 * 128 * 6
    with pytest.raises(ValueError, match="mixture"):
        Shape.of(config_folder(tmp_path, n_routed_experts=8))


def test_a_side_is_a_process_with_turns(tmp_path: Path) -> None:
    one = turns.Running(sys.executable, made_spec(tmp_path, "disk"), tmp_path / "log", {})
    try:
        assert one.ready(60) == {"threads": 2}
        one.pause()
        found = one.round(60)
        assert found["bytes"] == sum(len(r) for r in spec.made_up(5, 3, 9, 512)) * 2 * 64 * 2
        assert found["durable"] == found["seconds"] > 0
        assert 0 <= found["cpu"] < 30
        assert os.listdir(tmp_path / "out") == []
        one.pause()
    finally:
        one.end()


def test_processor_time_is_that_of_a_group() -> None:
    before = turns.processor_seconds(os.getpgrp())
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert turns.processor_seconds(os.getpgrp()) - before >= 0.25
    assert turns.processor_seconds(2**30) == 0.0


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    one = turns.Running(sys.executable, made_spec(tmp_path, "plain"), tmp_path / "log", {})
    try:
        with pytest.raises(turns.SideFailed, match="No module named 'vllm'"):
            one.ready(60)
    finally:
        one.end()
    hung = tmp_path / "hung"
    hung.write_text("#!/bin/sh\nexec sleep 600\n")
    hung.chmod(0o755)
    one = turns.Running(str(hung), made_spec(tmp_path, "disk"), tmp_path / "log", {})
    try:
        with pytest.raises(turns.SideFailed, match="no answer within 0 s"):
            one.ready(0.2)
    finally:
        one.end(0.2)


def test_one_broken_side_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = config_folder(tmp_path)
    argv = ["--model", str(model), "--out", str(tmp_path / "o"), "--samples", "4", "--length", "8"]
    argv += ["--sides", "plain,disk", "--rounds", "2", "--json", str(tmp_path / "lines")]
    assert extract_gpu.main(argv) == 1
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "lines").read_text()
    plain, disk, last = map(json.loads, printed.splitlines())
    assert "No module named 'vllm'" in plain["failed"]
    assert len(disk["rounds"]) == 2
    assert last["table"]["disk MB/s"] > 0


EXTRA = {
    "device": {"allocated": 500, "peak": 800},
    "device, nothing kept": 650,
    "step_states": 100,
    "resident": {"start": 5, "after a tenth": 10, "end": 11, "most": 12},
}


def test_the_table_holds_medians_as_parts_of_plain_of_the_disk_and_of_the_device() -> None:
    def rounds(*seconds: float, **more: Any) -> list[dict[str, Any]]:
        return [
            {
                "tokens": 1000,
                "seconds": s,
                "opening": 0.0,
                "durable": None,
                "bytes": 0,
                "extra": {},
                **more,
            }
            for s in seconds
        ]

    found = {
        "matmul": rounds(1.0, extra={"flops": 4e12}),
        "disk": rounds(1.0, durable=2.0, bytes=4_000_000),
        "plain": rounds(9.0, 1.0, 1.0),
        "vllm": rounds(2.0, opening=0.75, durable=4.0, bytes=4_000_000, extra=EXTRA),
        "library": [],
    }
    assert extract_gpu.table(found, flops=2_000_000_000) == {
        "matmul TFLOP/s": 4.0,
        "disk MB/s": 2.0,
        "plain": {"tok/s": 1000.0, "of plain": 1.0, "MFU": 0.5},
        "vllm": {
            "tok/s": 500.0,
            "of plain": 0.5,
            "MFU": 0.25,
            "of plain, once open": 0.8,
            "durable tok/s": 250.0,
            "durable of plain": 0.25,
            "durable MB/s": 1.0,
            "of the disk": 0.5,
            "device memory, in steps' states": 1.5,
            "resident, end over a tenth": 1.1,
        },
    }
    assert extract_gpu.spread(32) == (2, 16, 29, 31)
    assert extract_gpu.spread(2) == (0, 1)
