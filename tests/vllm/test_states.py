"""The patched library's own class against transformers in float32, on the real vLLM."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from support import needs
from support.vllm_env import Library, Version, environment, run_script

#: Engine starts, beside whatever else runs on few cores.
pytestmark = pytest.mark.timeout(600)

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
    _check(
        run_script("states.py", tmp_path, kind, dtype, json.dumps(layers), "1", timeout=560),
        layers,
        dtype,
    )


@pytest.mark.parametrize(("version", "library"), [("0.16", "0.4"), ("0.32", "0.4"), ("0.32", None)])
def test_the_other_pairs_are_right_too(
    tmp_path: Path, version: Version, library: Library | None
) -> None:
    """speculators 0.4 on both, and 0.3.0 on the newest vLLM."""
    needs.vllm_python(version, library)
    variables = {}
    if library is None:
        # that environment has no speculators of its own: the other one's, and nothing else of it
        (tmp_path / "library").mkdir()
        for part in needs.vllm_python().parents[1].glob("lib/python3*/site-packages/speculators*"):
            (tmp_path / "library" / part.name).symlink_to(part)
        paths = environment(version)["PYTHONPATH"]
        variables["PYTHONPATH"] = f"{tmp_path / 'library'}{os.pathsep}{paths}"
    arguments = ("llama", "float32", json.dumps(HOOKED), "1")
    found = run_script(
        "states.py",
        tmp_path,
        *arguments,
        version=version,
        speculators=library,
        variables=variables,
        timeout=560,
    )
    assert found["speculators"] == ("0.3.0" if library is None else "0.4.0.1")
    _check(found, HOOKED, "float32")


def test_two_ranks_give_the_same_states(tmp_path: Path) -> None:
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each rank asks for a NUMA node
        "VLLM_SLEEP_WHEN_IDLE": "1",  # three processes that spin are too many for two cores
        "TORCH_COMPILE_DISABLE": "1",  # the split embedding would be compiled for 40 s
    }
    arguments = ("llama", "float32", json.dumps(HOOKED), "2")
    found = run_script("states.py", tmp_path, *arguments, variables=variables, timeout=560)
    _check(found, HOOKED, "float32")


def _check(found: dict[str, Any], layers: tuple[int, ...], dtype: str) -> None:
    print(json.dumps(found))
    tolerance = FLOAT32 if dtype == "float32" else BFLOAT16
    assert {k: v for k, v in found["data"].items() if not v <= tolerance} == {}
    assert found["neighbour"] > 5 * tolerance, "a layer off by one would pass unseen"
    assert found["idempotent"]
    _check_refusals(found["refusals"], tolerance)
    _check_tensors(found["tensors"], dtype, layers)
    alone = found["refusals"]["empty rows alone"]
    assert alone["ids"] == ["torch.int64", [0]]
    assert alone["states"] == [f"torch.{dtype} [0, 128]"]
    assert alone["layers"] == len(layers)


def _check_refusals(found: dict[str, Any], tolerance: float) -> None:
    refused = "RefusedRowsError: sequence 1 "
    assert found["too long"] == refused + "has 257 tokens, the limit is 256"
    assert found["id past the vocabulary"] == refused + (
        "has the token id 500, the vocabulary has 500"
    )
    assert found["negative id"] == refused + "has the token id -1, the vocabulary has 500"
    assert found["no rows"] == "ValueError: token_ids cannot be empty"
    assert found["after refusals"] <= tolerance
    assert found["empty row"].pop("others") <= tolerance
    assert found["empty rows alone"].pop("others") == 0
    assert found["empty row"] == found["empty rows alone"]
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
