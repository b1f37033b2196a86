"""The patched library's own class against transformers in float32, on the real vLLM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.vllm_env import run_script

FLOAT32 = 1e-5
BFLOAT16 = 4e-2

#: Layer 7 is the last: vLLM 0.16 has no id for it, so these are captured by hooks.
HOOKED = (5, 1, 3, 7, 3)
#: Captured through SupportsEagle3.
NAMED = (5, 1, 3)


@pytest.mark.parametrize(
    ("kind", "dtype", "layers"),
    [
        pytest.param("llama", "float32", HOOKED, id="llama-hooks"),
        pytest.param("llama", "float32", NAMED, id="llama-interface"),
        pytest.param("llama", "bfloat16", HOOKED, id="llama-bfloat16"),
        pytest.param("qwen3", "float32", HOOKED, id="qwen3"),
        pytest.param("deepseek", "float32", HOOKED, id="deepseek-v3"),
    ],
)
def test_states_are_those_of_transformers(
    tmp_path: Path, kind: str, dtype: str, layers: tuple[int, ...]
) -> None:
    _check(run_script("states.py", tmp_path, kind, dtype, json.dumps(layers), "1"), layers, dtype)


def test_two_ranks_give_the_same_states(tmp_path: Path) -> None:
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each rank asks for a NUMA node
        "VLLM_SLEEP_WHEN_IDLE": "1",  # three processes that spin are too many for two cores
        "TORCH_COMPILE_DISABLE": "1",  # the split embedding would be compiled for 40 s
    }
    arguments = ("llama", "float32", json.dumps(HOOKED), "2")
    found = run_script("states.py", tmp_path, *arguments, variables=variables)
    _check(found, HOOKED, "float32")


def _check(found: dict[str, Any], layers: tuple[int, ...], dtype: str) -> None:
    print(json.dumps(found))
    tolerance = FLOAT32 if dtype == "float32" else BFLOAT16
    assert {k: v for k, v in found["data"].items() if not v <= tolerance} == {}
    assert found["neighbour"] > 5 * tolerance, "a layer off by one would pass unseen"
    assert found["idempotent"]
    _check_refusals(found["refusals"], tolerance)
    _check_tensors(found["tensors"], dtype, layers)


def _check_refusals(found: dict[str, Any], tolerance: float) -> None:
    refused = "RefusedRowsError: sequence 1 "
    assert found["empty"] == refused + "is empty"
    assert found["too long"] == refused + "has 257 tokens, the limit is 256"
    assert found["id past the vocabulary"] == refused + (
        "has the token id 500, the vocabulary has 500"
    )
    assert found["negative id"] == refused + "has the token id -1, the vocabulary has 500"
    assert found["no rows"] == "ValueError: token_ids cannot be empty"
    assert found["after refusals"] <= tolerance
    # a bare assert: the type and the place speak where the message is empty
    assert found["failing call"].startswith(
        "RemoteError: worker of rank 0: AssertionError: (no message) at "
    )
    assert "inside.py:" in found["failing call"]
    assert found["queued after it"] == 0
    assert found["good call after it"] <= tolerance
    assert found["requests that workers know"] == 0
    assert re.match(r"RemoteError: worker of rank \d: AssertionError: ", found["bare assert"])
    assert found["killed"] == (
        "WorkerDiedError: vLLM's worker of rank 0 died: killed by SIGKILL (out of memory?)"
    )


def _check_tensors(found: dict[str, Any], dtype: str, layers: tuple[int, ...]) -> None:
    assert found["dtype"] == f"torch.{dtype}"
    assert found["changed"] == [True] + [False] * (len(layers) - 1)
    assert all(found["own"])
