"""``worker dry`` on the real vLLM: what is resolved, refused and foretold, without weights.

The checkpoints are config.json alone: nothing here could load them.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.enginereport import EngineReport
from eagle3_agent.preflight.check import known
from eagle3_agent.preflight.libraries import capture, engine_config
from eagle3_agent.preflight.libraries.engine_facts import PROBE, EngineFacts
from eagle3_agent.protocol import dumps, from_json
from eagle3_agent.protocol.values import Profile
from support import needs, vllm_env
from support.preflight import profile
from support.vllm_env import Library, Version

pytestmark = pytest.mark.vllm

VERSIONS: tuple[Version, ...] = ("0.16", "0.32")

_PLAIN = {
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "deepseek": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "routed_scaling_factor": 2.5,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "swiglu_limit": 7.0,
    },
    "unknown": {"architectures": ["NoSuchForCausalLM"], "model_type": "llama"},
    "squeezed": {**_LLAMA, "quantization_config": {"quant_method": "squeezed"}},
    "own-code": {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
    },
}


def asked(folder: Path, kind: str, engine: str = "vllm", **changes: Any) -> Profile:
    model = folder / kind
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({**_PLAIN, **_KINDS[kind]}))
    if kind == "own-code":
        code = "from transformers import PretrainedConfig\nclass OwnConfig(PretrainedConfig):\n"
        (model / "configuration_own.py").write_text(f"{code}    model_type = 'own'\n")
    settings = {"model_max_model_len": 256, "capture_layers": (1, 3, 7), **changes}
    return profile(model_path=str(model), engine_name=engine, **settings)


def dry(
    folder: Path, wanted: Profile, version: Version, library: Library | None = None, **env: str
) -> EngineReport:
    report = folder / "report.json"
    python = needs.vllm_python(version, library)
    began = time.monotonic()
    done = subprocess.run(
        [str(python), "-m", "eagle3_agent.worker", "dry", "--report", str(report)],
        input=dumps({"profile": wanted}).encode(),
        env={**vllm_env.environment(version, library), **env},
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    found = from_json(EngineReport, json.loads(report.read_bytes()))
    print(f"{time.monotonic() - began:.1f} s, by step {found.seconds}, {found.memory_mb} MiB")
    return found


def judged(report: EngineReport, wanted: Profile) -> tuple[Any, Any]:
    facts = known((PROBE, EngineFacts("vllm", report)))
    return engine_config.CHECK.decide(facts, wanted), capture.CHECK.decide(facts, wanted)


#: Kind -> whether its class has vLLM's interface on 0.16 and on 0.32.
_INTERFACE = {
    "llama": (True, True),
    "qwen3": (True, True),
    "deepseek": (False, True),
    "gpt-oss": (True, True),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", _INTERFACE)
def test_a_model_is_resolved_and_its_capture_foretold(
    tmp_path: Path, kind: str, version: Version
) -> None:
    wanted = asked(tmp_path, kind)
    found = dry(tmp_path, wanted, version)
    assert found.error is None
    made = found.resolved
    assert made is not None
    assert made.architecture == _KINDS[kind]["architectures"][0]
    assert (made.dtype, made.max_model_len, made.executor) == ("bfloat16", 257, "UniProcExecutor")
    assert (made.chunked_prefill, made.prefix_caching) == (True, False)
    assert (made.max_num_batched_tokens, made.max_num_seqs) == (8192, 256)
    seen = found.capture
    assert seen is not None
    assert (seen.problem, seen.seen, seen.layers, seen.refusals) == ("", "model", 8, ())
    interface = "vLLM's SupportsEagle3 for layers 1, 3, the final norm's input for layer 7"
    has = _INTERFACE[kind][VERSIONS.index(version)]
    assert seen.how == (interface if has else "forward hooks on layers 1, 3, 7")
    assert seen.attention
    assert seen.tried.endswith(f"on vLLM {version}.0")
    assert found.cuda_touched is False
    assert [v.status for v in judged(found, wanted)] == ["pass", "pass"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("kind", "changes", "words", "key"),
    [
        ("unknown", {}, "NoSuchForCausalLM", "engine.name"),
        ("squeezed", {}, "Unknown quantization method: squeezed", "quantization_config"),
        ("own-code", {}, "contains custom code", "model.trust_remote_code"),
        (
            "llama",
            {"model_tensor_parallel_size": 3},
            "attention heads (4) must be divisible by tensor parallel size (3)",
            "model.tensor_parallel_size (now 3) to a number that divides the 4",
        ),
        ("llama", {"model_max_model_len": 513}, "llama has 512 positions", "model.max_model_len"),
    ],
)
def test_what_vllm_refuses_is_told_in_its_words_with_the_key(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: str, key: str, version: Version
) -> None:
    wanted = asked(tmp_path, kind, **changes)
    found = dry(tmp_path, wanted, version)
    assert found.resolved is None
    config, states = judged(found, wanted)
    assert config.status == "block"
    assert words in config.saw
    assert key in config.todo
    assert states.status == "warn"


@pytest.mark.parametrize("version", VERSIONS)
def test_float16_that_scales_states_is_refused_before_the_load(
    tmp_path: Path, version: Version
) -> None:
    wanted = asked(tmp_path, "deepseek", model_dtype="float16")
    found = dry(tmp_path, wanted, version)
    config, states = judged(found, wanted)
    assert config.status == "pass"
    assert states.status == "block"
    assert "in float16 divides its states by 2.5: set model.dtype to bfloat16" in states.saw


@pytest.mark.parametrize(("version", "library"), [("0.16", None), ("0.32", "0.4")])
def test_the_librarys_own_generator_is_made_up_to_its_workers(
    tmp_path: Path, version: Version, library: Library | None
) -> None:
    wanted = asked(tmp_path, "qwen3", "speculators")
    found = dry(tmp_path, wanted, version, library)
    assert found.error is None
    assert found.resolved is not None
    assert (found.resolved.executor, found.resolved.max_num_seqs) == ("MultiprocExecutor", 128)
    assert (found.resolved.dtype, found.resolved.prefix_caching) == ("bfloat16", False)
    assert found.capture is not None
    assert "with speculators" in found.capture.tried
    assert found.capture.how.startswith("vLLM's SupportsEagle3")


def test_a_broken_vllm_is_the_report_and_no_crash(tmp_path: Path) -> None:
    broken = tmp_path / "vllm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit('out of here')\n")
    paths = f"{tmp_path}:{vllm_env.environment('0.32')['PYTHONPATH']}"
    wanted = asked(tmp_path, "llama")
    found = dry(tmp_path, wanted, "0.32", PYTHONPATH=paths)
    assert found.error is not None
    assert (found.failed, found.error.type, found.error.message) == (
        "import",
        "SystemExit",
        "out of here",
    )
    config, _ = judged(found, wanted)
    assert (config.status, "importing vLLM fails: out of here" in config.saw) == ("block", True)
