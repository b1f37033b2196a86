"""Each patch is there for something: what happens without it, with both generations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support import needs
from support.vllm_env import run_script

#: Engine starts, beside whatever else runs on few cores.
pytestmark = pytest.mark.timeout(600)

#: Patch -> what starting the generator, or a call of it, raises without the patch.
RAISED = {
    "encoder-decoder-field": r"is_encoder_decoder\s+Field required",
    "cache-memory": r"Found no NVIDIA driver",
    "cache-config": r"unexpected keyword argument 'kv_cache_specs'",
    "scheduler-block-size": r"missing 1 required positional argument: 'block_size'",
    "replaced-forward": r"'LlamaModel' object has no attribute 'get_input_embeddings'",
    "reply-shape": r"Boolean value of Tensor with more than one value is ambiguous",
    "two-phase-step": r"sample_tokens\(\) must be called after execute_model\(\) returns None",
    "tokenizer": r"^\w+: ",
}

#: Patch -> vLLM's setting without and with it.
SETTINGS = {
    "own-dtype": ["torch.bfloat16", "torch.float32"],
    "prefix-caching": [True, False],
    "full-length": [256, 257],
    "remote-code": [True, False],
    "async-scheduling": [None, False],  # None: on, where the platform can
    "batch-limits": [[256, 32], [512, 7]],
}


def test_without_a_patch_its_symptom_appears(tmp_path: Path) -> None:
    found = run_script("symptoms.py", tmp_path, "0.3", timeout=560)
    print(found)
    assert [n for n, pattern in RAISED.items() if not re.search(pattern, found[n])] == []
    assert {name: found[name] for name in SETTINGS} == SETTINGS
    unread, read = found["config-class"]
    assert "model type `kimi_k25` but Transformers does not recognize" in unread
    assert read == "read"

    # vLLM alone: no type, no message, no line
    assert found["vllm/worker-errors"].startswith("RuntimeError: Worker failed with error ''")

    _check_layer_order(found)
    chunked = found["whole-prompts"]
    assert chunked["rows"] != [100, 200, 250, 50]
    assert chunked["error of the first"] < 1e-5
    assert not chunked["second"] < 0.1

    assert found["finished-requests"] > 0
    assert found["cut"] == [256, 256], "300 tokens come back as 256, without a word"
    # an empty row raises an assertion without text, and so does the good call after it
    assert found["refuse-rows"] == ["AssertionError: ", "AssertionError: "]


def test_what_the_later_generation_still_does(tmp_path: Path) -> None:
    needs.vllm_python(speculators="0.4")
    found = run_script("symptoms.py", tmp_path, "0.4", timeout=560, speculators="0.4")
    print(found)
    # twelve samples, in the order of their names as text: each gets another's loss_mask
    assert found["sample-order"] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert "Request req_1_32 not found in captured states" in found["held-requests"]
    _check_layer_order(found)
    assert found["finished-requests"] > 0
    assert found["refuse-rows"] == ["AssertionError: ", "AssertionError: "]
    assert re.search(RAISED["cache-memory"], found["cache-memory"])
    # it switches prefix caching off itself, and names the field that vLLM asks for
    changed = {name: value for name, value in SETTINGS.items() if name != "prefix-caching"}
    assert {name: found[name] for name in changed} == changed
    assert found["prefix-caching"] == [False, False]
    assert found["encoder-decoder-field"] == ""


def test_what_the_newest_vllm_asks_for(tmp_path: Path) -> None:
    needs.vllm_python("0.32", "0.4")
    found = run_script(
        "symptoms.py", tmp_path, "newest", timeout=560, version="0.32", speculators="0.4"
    )
    print(found)
    assert "PydanticUndefinedAnnotation: name 'torch' is not defined" in found["config-annotations"]
    assert "No common block size for 16" in found["cache-block-size"]
    refused, made = found["request-arguments"]
    assert "unexpected keyword argument 'eos_token_id'" in refused
    assert made == ""


def _check_layer_order(found: dict[str, Any]) -> None:
    order = found["layer-order"]
    assert max(order["ascending"]) < 1e-5
    assert max(order["as asked"]) > 0.1
