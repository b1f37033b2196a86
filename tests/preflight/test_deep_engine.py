"""The tiny model: what is asked of the engine, and every verdict from what came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import runs
from eagle3_agent.preflight import catalogue
from eagle3_agent.preflight.check import Ask, known
from eagle3_agent.preflight.deep import tiny_engine
from eagle3_agent.preflight.deep.tiny_engine import CHECK, PROBE, Built, EngineFacts, Phase
from eagle3_agent.protocol.events import Failure, Stage
from eagle3_agent.protocol.values import ErrorInfo, Verdict, Where
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker.exercise import model
from support import needs
from support.exercised import leaving_nothing
from support.preflight import gather, profile

GOOD = EngineFacts(
    engine="vllm",
    ranks=8,
    device="8 GPUs",
    built=Built("done", "", "DeepseekV3ForCausalLM (deepseek_v3)", "", "bfloat16", 8),
    phases=(Phase("build", 8.0), Phase("load", 41.0), Phase("extract", 0.4)),
    samples=8,
    ok=True,
    verdict="all 4 recomputed samples agree in every layer",
    worst=0.011,
    tolerance=0.04,
)


def judged(facts: EngineFacts) -> Verdict:
    return CHECK.decide(known((PROBE, facts)), profile())


def test_deep_checks_are_asked_only_when_deep() -> None:
    quick = {c.id for c in catalogue.for_ask(Ask(profile()))}
    deep = {c.id for c in catalogue.for_ask(Ask(profile(), deep=True))}
    mine = {"gpu-compute", "gpu-peers", "nccl", "disk-throughput", "tiny-engine"}
    assert mine <= deep - quick


def test_states_that_agree_pass_with_their_figures() -> None:
    found = judged(GOOD)
    assert found.status == "pass"
    assert "engine vllm, 8 ranks on 8 GPUs: DeepseekV3ForCausalLM (deepseek_v3)" in found.saw
    assert "build 8.0 s, load 41.0 s, extract 0.4 s" in found.saw
    assert "off by 0.011 of 0.04 allowed" in found.saw


def test_another_architecture_is_a_warning_that_says_so() -> None:
    found = judged(replace(GOOD, built=replace(GOOD.built, instead="KeyError: 'new'")))
    assert found.status == "warn"
    assert "as the model's own could not be made (KeyError: 'new')" in found.saw


def test_a_failed_run_blocks_with_its_first_cause() -> None:
    error = "AssertionError:  at /venv/vllm/x.py:12"
    found = judged(replace(GOOD, failed="run", ended="ended with status 1", error=error, samples=0))
    assert found.status == "block"
    assert "the run ended with status 1: AssertionError:  at /venv/vllm/x.py:12" in found.saw


def test_a_run_that_only_did_not_close_in_time_warns() -> None:
    late = replace(GOOD, failed="run", ended="did not come to its end within 180 s", slow=True)
    assert judged(late).status == "warn"
    assert judged(replace(late, samples=0)).status == "block"


def test_wrong_states_block() -> None:
    wrong = replace(GOOD, ok=False, verdict="1 of 4 recomputed samples are wrong", faults=("s",))
    found = judged(wrong)
    assert found.status == "block"
    assert "1 of 4 recomputed samples are wrong: s" in found.saw


@pytest.mark.parametrize("step", ["build", "verify"])
def test_what_could_not_be_built_or_verified_is_no_verdict_on_the_engine(step: str) -> None:
    found = judged(replace(GOOD, failed=step, ended="ended with status 1", error="x"))
    assert found.status == "warn"


def test_nothing_to_exercise_is_a_skip_and_silence_a_warning() -> None:
    assert judged(EngineFacts("no GPU: no driver")).status == "skip"
    assert CHECK.decide(known(), profile()).status == "warn"


def test_the_run_keeps_the_profiles_engine_and_ranks_but_nothing_of_its_files() -> None:
    asked = profile(
        engine_name="script",
        engine_script="/s.py",
        engine_max_num_seqs=4,
        model_tensor_parallel_size=8,
        model_trust_remote_code=True,
        output_format="safetensors",
        data_max_samples=1,
    )
    made = tiny_engine.tiny(asked, "/scratch", tiny_engine.played("script"))
    assert (made.engine.name, made.engine.script, made.engine.max_num_seqs) == (
        "speculators",
        None,
        4,
    )
    assert made.model.path == "/scratch/model"
    assert made.model.tensor_parallel_size == 8
    assert not made.model.trust_remote_code
    assert made.output.dir == "/scratch/out"
    assert made.output.format == "safetensors"
    assert (made.data.path, made.data.max_samples) == ("/scratch/rows.jsonl", None)
    assert made.host == asked.host


def test_stages_and_causes_come_from_the_runs_own_events(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append(Stage(10.0, "load", "start"))
    folder.append(Stage(31.5, "load", "done"))
    folder.append(Stage(31.5, "warmup", "start"))
    where = Where("/venv/vllm/x.py", 12)
    folder.append(Failure(33.0, ErrorInfo("AssertionError", "", 3, where)))
    folder.append(Stage(33.0, "warmup", "failed"))
    assert tiny_engine._phases(folder) == (Phase("load", 21.5), Phase("warmup", 1.5))
    assert tiny_engine._failure(folder) == "AssertionError:  at /venv/vllm/x.py:12"
    assert tiny_engine._phases(RunFolder(tmp_path / "none")) == ()


# ------------------------------------------------------------------ the config


def shrunk(ranks: int = 8, **config: Any) -> dict[str, Any]:
    plain = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "hidden_size": 2048,
        "vocab_size": 151936,
        "layer_types": ["full_attention"] * 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "rope_theta": 1e6,
    }
    return model.shrink({**plain, **config}, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_sizes_are_small_and_the_ranks_divide_them(ranks: int) -> None:
    made = shrunk(ranks, head_dim=128, moe_intermediate_size=768)
    assert made["num_hidden_layers"] == len(made["layer_types"]) == 4
    for name in ("num_attention_heads", "num_key_value_heads", "moe_intermediate_size"):
        assert made[name] % ranks == 0
    assert made["num_key_value_heads"] < made["num_attention_heads"]
    assert made["hidden_size"] <= 1024
    assert made["num_experts"] == made["num_experts_per_tok"]  # no token is near a border
    assert made["rope_theta"] == 1e6  # what is no size stays


def test_a_wrappers_language_model_is_taken_without_quantisation_and_code() -> None:
    text = {"model_type": "kimi_k2", "num_hidden_layers": 61, "num_attention_heads": 64}
    made = model.shrink(
        {
            "model_type": "kimi_k25",
            "text_config": {**text, "quantization_config": {}, "auto_map": {}, "q_lora_rank": None},
        },
        1,
    )
    assert made["model_type"] == "deepseek_v3"
    assert not made.keys() & {"quantization_config", "auto_map"}
    assert made["q_lora_rank"] is None  # none stays none
    assert "num_key_value_heads" not in made


# ------------------------------------------------------------------ for real


@pytest.fixture(scope="module")
def python() -> Path:
    """Looked for before each test gets a home of its own."""
    return needs.worker_python()


def test_the_reference_engine_is_exercised_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen3",
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "hidden_size": 4096,
                "vocab_size": 151936,
                "max_position_embeddings": 40960,
                "torch_dtype": "bfloat16",
            }
        )
    )
    asked = profile(
        host_python=str(python),
        model_path=str(tmp_path),
        engine_name="transformers",
    )
    with leaving_nothing():
        found = CHECK.decide(gather(PROBE, asked, deep=True), asked)
    assert found.status == "pass", found.saw
    assert "engine transformers, 1 rank on the CPU: Qwen3ForCausalLM (qwen3), bfloat16" in found.saw
    assert "all 4 recomputed samples agree in every layer" in found.saw
    assert runs.list_folders() == []
