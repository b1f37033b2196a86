"""The deep exercises' worker side under a real torch and vLLM, on the CPU with gloo."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import known
from eagle3_agent.preflight.deep import allreduce, compute, peers, tiny_engine
from eagle3_agent.protocol.values import Profile, Verdict
from support import needs, vllm_env
from support.exercised import exercised, leaving_nothing
from support.preflight import gather, profile
from support.vllm_env import Version

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
#: Kimi-K2.5's, as its config.json has it, but for the tower that is left out.
KIMI = {
    "model_type": "kimi_k25",
    "text_config": {
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "hidden_size": 7168,
        "vocab_size": 163840,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.827,
        "norm_topk_prob": True,
        "dtype": "bfloat16",
        "max_position_embeddings": 262144,
        "quantization_config": {"quant_method": "compressed-tensors"},
        "auto_map": {"AutoConfig": "configuration.Config"},
        "bos_token_id": 163584,
        "eos_token_id": 163585,
    },
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "home"))


def asked(ranks: int = 1, version: Version = "0.16", **changes: Any) -> Profile:
    variables = vllm_env.ENVIRONMENT if version == "0.16" else vllm_env.ENVIRONMENT_0_32
    made = profile(model_tensor_parallel_size=ranks, **changes)
    host = replace(made.host, python=str(needs.vllm_python(version)), env=dict(variables))
    return replace(made, host=host)


# ------------------------------------------------------------------ GPUs, on the CPU


def test_each_device_is_exercised_in_its_own_process() -> None:
    with leaving_nothing():
        found = exercised("compute", compute.ComputeFacts, asked(2), gpus=2)
    assert [(g.index, g.ended) for g in found.gpus] == [(0, ""), (1, "")]
    for gpu in found.gpus:
        report = gpu.report
        assert (report.phase, report.problem) == ("done", "")
        assert (report.bad_words, report.wrong, report.wrong_late) == (0, 0, 0)
        assert report.bytes >= 8 << 20
        assert (report.tflops or 0) > 0
    verdict = judged(compute, found)
    assert verdict.status in ("pass", "warn")  # two processes of a busy machine may differ
    assert "product exact" in verdict.saw


HANGS = """
import json, sys, time
json.dump({"phase": "multiply", "problem": "", "bad_words": 0}, open(sys.argv[1], "w"))
time.sleep(600)
"""


def test_a_device_that_hangs_is_named_and_the_others_are_judged() -> None:
    changes = {"gpu1": {"program": HANGS, "timeout": 2}}
    found = exercised("compute", compute.ComputeFacts, asked(2), gpus=2, changes=changes)
    verdict = judged(compute, found)
    assert verdict.status == "block"
    first, second = verdict.saw.splitlines()
    assert "product exact" in first
    assert "GPU 1" in second
    assert "did not come to its end within 2 s and was ended at: multiply" in second


def test_bytes_arrive_between_devices() -> None:
    found = exercised("peers", peers.PeersFacts, asked(3), gpus=3)
    assert (found.ended, found.report.phase) == ("", "done")
    assert len(found.report.pairs) == 6
    assert all(p.wrong_words == 0 and p.bytes_per_second > 0 for p in found.report.pairs)
    # memory of one machine is never as fast twice
    assert judged(peers, found).status in ("pass", "warn")


def test_all_ranks_reduce_and_the_sums_are_exact() -> None:
    found = exercised("allreduce", allreduce.AllReduceFacts, asked(3), gpus=3)
    assert [(r.rank, r.ended, r.report.phase) for r in found.ranks] == [
        (0, "", "done"),
        (1, "", "done"),
        (2, "", "done"),
    ]
    for rank in found.ranks:
        assert [(one.bytes, one.wrong) for one in rank.report.rounds] == [(4096, 0), (1 << 20, 0)]
    assert "3 ranks: 4.0 KiB in" in judged(allreduce, found).saw


LATE = """
import json, sys, time
json.dump({"phase": "open the device", "problem": ""}, open(sys.argv[1], "w"))
time.sleep(600)
"""


def test_the_rank_that_does_not_arrive_is_named() -> None:
    # torch alone takes seconds to import on a busy machine: the others must have come to wait
    changes: dict[str, dict[str, Any]] = {f"rank{i}": {"timeout": 25} for i in range(3)}
    changes["rank1"]["program"] = LATE
    found = exercised("allreduce", allreduce.AllReduceFacts, asked(3), gpus=3, changes=changes)
    verdict = judged(allreduce, found)
    assert verdict.status == "block"
    assert "did not arrive: rank 1 on GPU 1 (at: open the device)" in verdict.saw


def test_a_torch_without_gpus_says_so() -> None:
    """The very commands that a GPU host runs: this machine's torch sees none."""
    changes = {"gpu0": {"device": "cuda"}}
    found = exercised("compute", compute.ComputeFacts, asked(1), gpus=1, changes=changes)
    verdict = judged(compute, found)
    assert verdict.status == "warn"
    assert "NoDevice: torch" in verdict.saw


def test_wrong_products_are_found(tmp_path: Path) -> None:
    """With a multiplication that is off in one element, through the same comparison."""
    code = """
import sys, torch
from pathlib import Path
from eagle3_agent.worker.exercise import compute
from eagle3_agent.worker.exercise.report import Report
real = torch.mm
def broken(a, b, out):
    real(a, b, out=out)
    out[17, 5] += 1
    return out
torch.mm = broken
compute.perform({"device": "cpu", "size": 128, "bytes": 1 << 22}, Report(Path(sys.argv[1])))
"""
    report = tmp_path / "report.json"
    python = str(needs.vllm_python())
    env = vllm_env.environment()
    subprocess.run([python, "-c", code, str(report)], env=env, check=True, timeout=100)
    found = json.loads(report.read_bytes())
    assert (found["wrong"], found["wrong_late"]) == (1, 1)
    assert found["bad_words"] == 0


# ------------------------------------------------------------------ the tiny model


@pytest.mark.parametrize(
    ("engine", "version", "config"),
    [
        ("transformers", "0.16", LLAMA),
        ("vllm", "0.16", LLAMA),
        ("speculators", "0.16", LLAMA),
        ("vllm", "0.32", {**LLAMA, "model_type": "unheard-of"}),
    ],
)
def test_a_tiny_model_goes_through_the_engine(
    tmp_path: Path, engine: str, version: Version, config: dict[str, Any]
) -> None:
    verdict = tried(tmp_path, engine, version, config, "float32")
    unknown = config["model_type"] == "unheard-of"
    assert verdict.status == ("warn" if unknown else "pass"), verdict.saw
    assert f"engine {engine}, 1 rank on the CPU: LlamaForCausalLM (llama)" in verdict.saw
    assert "all 4 recomputed samples agree in every layer" in verdict.saw
    assert "8 samples; build " in verdict.saw
    assert "verify" in verdict.saw
    assert ("KeyError: 'unheard-of'" in verdict.saw) is unknown


def test_wrong_states_of_an_engine_are_found(tmp_path: Path) -> None:
    """vLLM's CPU build turns DeepSeek's query wrongly (docs/extraction.md): a fault to be seen."""
    verdict = tried(tmp_path, "vllm", "0.32", KIMI, "auto")
    assert verdict.status == "block"
    assert "engine vllm, 1 rank on the CPU: DeepseekV3ForCausalLM (deepseek_v3)" in verdict.saw
    assert "recomputed samples are wrong: inexact" in verdict.saw
    assert "layer 1: median token error 0." in verdict.saw


def tried(
    folder: Path, engine: str, version: Version, config: dict[str, Any], dtype: str
) -> Verdict:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    changes = {"model_path": str(folder / "model"), "engine_name": engine, "model_dtype": dtype}
    wanted = asked(1, version, **changes)
    with leaving_nothing():
        facts = gather(tiny_engine.PROBE, wanted, deep=True)
    verdict = tiny_engine.CHECK.decide(facts, wanted)
    print(verdict.saw, facts.silent)
    return verdict


def judged(module: Any, facts: Any) -> Verdict:
    verdict: Verdict = module.CHECK.decide(known((module.PROBE, facts)), asked())
    print(verdict.saw)
    return verdict
