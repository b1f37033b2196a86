"""The capture core over a fake runner with a real torch model: cutting, refusals, memory."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.vllm_env import AGENT

_TESTS = Path(__file__).parents[1]
_SCRIPTS = _TESTS / "worker" / "scripts"


@pytest.fixture(scope="module")
def found(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every case of scripts/capturing.py found; a case that failed left its traceback."""
    folder = tmp_path_factory.mktemp("capturing")
    report = folder / "report.json"
    done = subprocess.run(
        [str(python), str(_SCRIPTS / "capturing.py"), str(report), str(folder)],
        env={**os.environ, "PYTHONPATH": f"{AGENT}{os.pathsep}{_TESTS}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cases: dict[str, Any] = json.loads(report.read_bytes())
    return cases


def test_rows_are_each_request_s_own_whatever_the_steps(found: dict[str, Any]) -> None:
    case = found["by_value"]
    assert case.pop("hooks source") == "forward hooks on layers 1, 3, 5"
    assert case.pop("interface source") == (
        "vLLM's SupportsEagle3 for layers 1, 3, the final norm's input for layer 5"
    )
    assert case == {
        f"{source} {layout}": [True] * 4
        for source in ("hooks", "interface")
        for layout in ("LSH", "SLH")
    }


def test_a_residual_that_the_model_does_not_add_is_not_added(found: dict[str, Any]) -> None:
    assert found["whole_first"] is True


def test_detaching_leaves_the_model_as_it_was(found: dict[str, Any]) -> None:
    assert found["detached"] == {
        "right": True,
        "hooks": [0, 0],
        "asked": [],
        "output": True,
        "own": False,
    }


def test_other_ranks_capture_nothing(found: dict[str, Any]) -> None:
    assert found["others"] == {"rows": {}, "asked": []}


def test_what_is_missing_ends_the_step_and_not_the_next_one(found: dict[str, Any]) -> None:
    hole = "the rows between were not computed (prefix caching?)"
    assert found["wrong"] == {
        "cached prefix": f"CaptureError: request a: row 16 came after row 0: {hole}",
        "a hole": f"CaptureError: request a: row 8 came after row 4: {hole}",
        "not a module": "CaptureError: layers [3] were not run as modules: nothing was captured. "
        "Use engine transformers for this model",
        "too few rows": "CaptureError: layer 1 gave states (19, 4) for 20 tokens of 4, "
        "in steps of 32 at most",
        "too few states": "CaptureError: Short returned 1 states for layers 1, 3",
        "no states": "CaptureError: Silent returned no auxiliary states",
    }
    assert found["unannounced"] == "CaptureError: request a of 10 tokens was not announced"


def test_layers_of_a_vision_tower_are_not_the_decoder_s(found: dict[str, Any]) -> None:
    assert found["decoders"] == {
        "language": True,
        "layers": 6,
        "none": "CaptureRefused: Wrapper has no list of 3 decoder layers: use engine transformers",
    }


def test_regions_of_the_arena_never_overlap(found: dict[str, Any]) -> None:
    size = 1 << 16
    assert found["arena"] == {"broken": [], "used": size, "whole": 0, "peak": size}


def test_memory_is_shared_where_it_can_be(found: dict[str, Any]) -> None:
    assert found["unshared"] == {
        "0": ["", [1 << 16], False, 0],
        "1": ["", [1 << 16], True, None],
        "2": ["CaptureRefused: not this one", [], True, None],
    }


def test_an_arena_of_one_sample_never_blocks_samples_split_over_steps(
    found: dict[str, Any],
) -> None:
    case = found["one_sample_arena"]
    # the longest sample waits for nobody while two others are half done, beyond the bound
    assert 0 < case.pop("beyond") <= 1920
    assert case == {
        "good": [True] * 4,
        "lines": [0, 1, 2, 3],
        "used": 0,
        "tokens": 65,
        "steps": 3,
        "padding": round(6 / 71, 4),
        "fill": round(65 / 96, 4),
    }


def test_slow_writers_stop_the_model_rather_than_fill_the_memory(found: dict[str, Any]) -> None:
    case = found["slow_writers"]
    assert case.pop("stuck") == 64, "a sample is 1024 bytes, the bound 64 KiB"
    size = 64 << 10
    assert case == {"held": size, "peak": size, "size": size, "good": True, "wait": True}


def test_a_reset_gives_back_what_is_held(found: dict[str, Any]) -> None:
    assert found["stopped"] == {"before": True, "after": 0, "files": [], "right": True}
