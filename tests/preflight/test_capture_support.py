"""How the states are captured: verdicts from what the worker saw of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eagle3_agent.enginereport import Capture, EngineReport
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.libraries import capture
from eagle3_agent.preflight.libraries.engine_facts import PROBE, EngineFacts
from eagle3_agent.protocol.values import ErrorInfo, Verdict
from support.preflight import profile

INTERFACE = Capture(
    model="LlamaForCausalLM",
    decoder="LlamaDecoderLayer",
    layers=32,
    how="vLLM's SupportsEagle3 for layers 1, 3",
    seen="model",
    attention=("FLASH_ATTN",),
    tried="LlamaForCausalLM on vLLM 0.32.0",
)
HOOKS = replace(INTERFACE, how="forward hooks on layers 1, 3")


def verdict(found: Capture | None = None, **facts: Any) -> Verdict:
    report = EngineReport(step="done", capture=found)
    seen = EngineFacts(**{"engine": "vllm", "report": report, **facts})
    return capture.CHECK.decide(known((PROBE, seen)), profile())


def test_the_interface_on_a_tried_pair_passes_and_is_named() -> None:
    found = verdict(INTERFACE, age=90.0)
    assert found.status == "pass"
    assert found.saw == (
        "vLLM's SupportsEagle3 for layers 1, 3\n"
        "LlamaForCausalLM of 32 LlamaDecoderLayers, attention FLASH_ATTN\n"
        "tried: LlamaForCausalLM on vLLM 0.32.0\n"
        "measured 1 min ago, nothing changed since"
    )
    assert verdict(HOOKS).status == "pass"


def test_what_no_test_runs_is_said_to_be_judged_by_signature() -> None:
    found = verdict(replace(INTERFACE, tried=""))
    assert (found.status, "by signature" in found.saw) == ("pass", True)
    found = verdict(replace(HOOKS, tried=""))
    assert (found.status, "by signature" in found.saw) == ("warn", True)
    assert "data.max_samples = 4" in found.todo


def test_what_the_worker_would_refuse_blocks_with_each_reason() -> None:
    reasons = (
        "DeepseekV2DecoderLayer in float16 divides its states by 2.5: set model.dtype to bfloat16",
        "prefix caching is on\x1b",
    )
    found = verdict(replace(INTERFACE, refusals=reasons))
    assert found.status == "block"
    assert found.saw == f"{reasons[0]}\nprefix caching is on\\x1b"


def test_a_model_that_cannot_be_laid_out_is_judged_by_its_class_and_says_so() -> None:
    found = verdict(replace(HOOKS, seen="class", problem="RuntimeError: no meta kernel"))
    assert found.status == "warn"
    assert "LlamaForCausalLM, by its class: forward hooks" in found.saw
    assert "cannot tell more: RuntimeError: no meta kernel" in found.saw


def test_without_a_model_it_cannot_be_told() -> None:
    error = EngineReport(step="done", failed="config", error=ErrorInfo("ValueError", "no"))
    found = verdict(report=error)
    assert (found.status, "see its configuration" in found.saw) == ("warn", True)
    found = verdict(end="SIGSEGV", words="boom")
    assert (found.status, "SIGSEGV: boom" in found.saw) == ("warn", True)
    found = verdict(report=None, problem="vllm not installed there")
    assert (found.status, "vllm not installed there" in found.saw) == ("warn", True)
    silent = Facts(silent={"engine": "did not answer"})
    assert capture.CHECK.decide(silent, profile()).status == "warn"


def test_engines_without_vllm_skip() -> None:
    assert verdict(engine="transformers").status == "skip"
    assert verdict(engine="auto").status == "skip"
