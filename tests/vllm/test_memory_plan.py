"""The memory plan's figures against what a real vLLM holds, rank for rank."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.memory import checkpoint
from eagle3_agent.preflight.memory.demand import CPU_BLOCK, Demand, demand, token_bytes
from eagle3_agent.preflight.memory.sharding import KNOWN, Span, Split
from support import needs
from support.preflight import gather, profile
from support.vllm_env import Version, environment, interpreter, run_script

#: Engine starts, beside whatever else runs on few cores.
pytestmark = pytest.mark.timeout(600)

_VARIABLES = {
    "VLLM_SLEEP_WHEN_IDLE": "1",  # processes that spin are too many for two cores
    "TORCH_COMPILE_DISABLE": "1",  # the split embedding would be compiled for 40 s
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the workers
}


def real(
    folder: Path, kind: str, dtype: str, ranks: int, version: Version = "0.16"
) -> tuple[dict[str, Any], Demand, Split]:
    """What vLLM holds of this model, and what was predicted of it from its files."""
    held = run_script(
        "memory_plan.py",
        folder,
        kind,
        dtype,
        str(ranks),
        variables=_VARIABLES,
        version=version,
        timeout=560,
    )
    asked = profile(
        model_path=str(folder / "model"),
        model_tensor_parallel_size=ranks,
        model_max_model_len=255,  # the engine asks for a token more
        model_dtype=dtype,
        host_env={"VLLM_MLA_DISABLE": environment(version).get("VLLM_MLA_DISABLE", "0")},
        engine_max_num_batched_tokens=256,
    )
    seen = gather(checkpoint.PROBE, asked).get(checkpoint.PROBE)
    assert (seen.problem, seen.unread) == ("", 0)
    split = Split(seen.decoder, ranks, dtype)
    return held, demand(seen, asked, "vllm", CPU_BLOCK), split


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        pytest.param("llama", 1, id="llama-float32-as-bfloat16"),
        pytest.param("llama", 2, id="llama-2-ranks"),
        pytest.param("llama", 4, id="llama-more-ranks-than-kv-heads"),
        pytest.param("gemma3", 1, id="gemma3-tied-and-windowed"),
        pytest.param("mistral", 1, id="mistral-windowed"),
        pytest.param("qwen3-moe", 2, id="qwen3-moe-2-ranks"),
        pytest.param("gpt-oss", 2, id="gpt-oss-2-ranks"),
    ],
)
def test_weights_and_cache_are_predicted_to_the_byte(tmp_path: Path, kind: str, ranks: int) -> None:
    held, predicted, split = real(tmp_path, kind, "bfloat16", ranks)
    assert len(held["ranks"]) == ranks
    for rank in held["ranks"]:
        assert predicted.weights == Span(rank["parameters"], rank["parameters"])
        assert predicted.cache == Span(rank["cache"], rank["cache"])
        assert token_bytes(split) == rank["token"]


def test_every_architecture_that_is_called_known_is_one_of_this_vllm() -> None:
    code = (
        "import json\n"
        "from vllm import ModelRegistry\n"
        "print(json.dumps(list(ModelRegistry.get_supported_archs())))"
    )
    done = subprocess.run(
        [str(interpreter()), "-c", code],
        env=environment(),
        capture_output=True,
        timeout=300,
        check=True,
    )
    found = set(json.loads(done.stdout.splitlines()[-1]))
    assert found >= KNOWN
    assert len(found) > len(KNOWN)


def test_latent_attentions_first_projections_are_whole_on_each_rank(tmp_path: Path) -> None:
    # this vLLM keeps every head's keys and values on the CPU: the next test's has a latent cache
    held, predicted, _ = real(tmp_path, "deepseek", "bfloat16", 2)
    for rank in held["ranks"]:
        assert predicted.weights == Span(rank["parameters"], rank["parameters"])
        assert predicted.cache == Span(rank["cache"], rank["cache"])


def test_the_latent_cache_is_predicted_to_the_byte(tmp_path: Path) -> None:
    needs.vllm_python("0.32")
    held, predicted, split = real(tmp_path, "deepseek", "bfloat16", 1, "0.32")
    assert predicted.cache == Span(*[held["ranks"][0]["cache"]] * 2)
    assert token_bytes(split) == held["ranks"][0]["token"]
    assert predicted.weights == Span(*held["loaded"] * 2)


def test_a_multimodal_model_without_pictures_is_at_the_lower_bound(tmp_path: Path) -> None:
    held, predicted, _ = real(tmp_path, "kimi", "float32", 1)
    assert predicted.weights.least == held["ranks"][0]["parameters"]
    assert predicted.weights.most > predicted.weights.least


@pytest.mark.parametrize(("kind", "scales"), [("gptq", 0), ("w8a8", 18)])
def test_packed_weights_keep_their_bytes(tmp_path: Path, kind: str, scales: int) -> None:
    """``scales``: bytes a layer that vLLM has until it has loaded, for a cache in eight bits."""
    held, predicted, split = real(tmp_path, kind, "bfloat16", 1)
    (loaded,) = held["loaded"]
    assert predicted.weights == Span(*[loaded - scales * split.decoder.layers] * 2)
