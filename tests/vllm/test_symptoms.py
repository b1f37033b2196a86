"""Each patch is there for something: what happens without it, on the supported pair."""

from __future__ import annotations

import re
from pathlib import Path

from support.vllm_env import run_script

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
    # on the CPU platform vLLM itself leaves it off
    "async-scheduling": [False, False],
}


def test_without_a_patch_its_symptom_appears(tmp_path: Path) -> None:
    found = run_script("symptoms.py", tmp_path)
    print(found)
    said = {name: found[f"speculators/{name}"] for name in RAISED}
    assert [n for n, pattern in RAISED.items() if not re.search(pattern, said[n])] == []
    assert {name: found[f"speculators/{name}"] for name in SETTINGS} == SETTINGS

    # vLLM alone: no type, no message, no line
    assert found["vllm/worker-errors"].startswith("RuntimeError: Worker failed with error ''")

    order = found["speculators/layer-order"]
    assert max(order["ascending"]) < 1e-5
    assert max(order["as asked"]) > 0.1

    chunked = found["speculators/whole-prompts"]
    assert chunked["rows"] != [100, 200, 250, 50]
    assert chunked["error of the first"] < 1e-5
    assert not chunked["second"] < 0.1

    assert found["speculators/finished-requests"] > 0

    # an empty row raises an assertion without text, and so does the good call after it
    assert found["speculators/refuse-rows"] == ["AssertionError: ", "AssertionError: "]
