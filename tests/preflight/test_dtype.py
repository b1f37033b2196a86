"""The precision of the states: verdicts from facts."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.preflight.model import capability, dtype, quantised
from eagle3_agent.preflight.model.capability import CapabilityFacts, Device
from eagle3_agent.preflight.model.model_facts import PROBE, ModelFacts
from eagle3_agent.protocol.values import EngineName, Verdict
from support import models
from support.preflight import gather, profile

BF16 = ModelFacts(
    "/m", model_type="llama", text_type="llama", dtype="bfloat16", config_dtype="bfloat16",
    dtypes={"BF16": 1000}, shards=1,
)  # fmt: skip
INT4 = quantised.describe({
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
})  # fmt: skip
H200 = Device(0, "NVIDIA H200", 90)
T4 = Device(0, "Tesla T4", 75)


def verdict(
    asked: str = "auto",
    engine: EngineName = "vllm",
    gpu: Device | None = H200,
    **changes: Any,
) -> Verdict:
    seen = ModelFacts(**{**BF16.__dict__, **changes})
    facts = known((PROBE, seen), (capability.PROBE, CapabilityFacts((gpu,) if gpu else ())))
    return dtype.CHECK.decide(facts, profile(model_dtype=asked, engine_name=engine))


FLOAT32: dict[str, Any] = {
    "dtype": "float32", "config_dtype": "float32", "dtypes": {"F32": 2000}
}  # fmt: skip
FLOAT16: dict[str, Any] = {
    "dtype": "float16", "config_dtype": "float16", "dtypes": {"F16": 1000}
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {**FLOAT16, "text_type": "deepseek_v3", "routed_scale": 2.5}


def test_auto_keeps_the_checkpoints_own_dtype() -> None:
    found = verdict()
    assert (found.status, found.saw) == ("pass", "states in bfloat16 (auto: the checkpoint's own)")


def test_auto_on_a_float32_checkpoint_says_what_each_engine_makes_of_it() -> None:
    found = verdict(**FLOAT32)
    assert found.status == "warn"
    assert "states in float32" in found.saw
    assert "which vLLM's own auto would take" in found.saw
    script = verdict(engine="script", **FLOAT32)
    assert "where the script hands vLLM dtype auto itself, it computes in bfloat16" in script.saw
    assert verdict("float32", **FLOAT32).status == "pass"
    assert verdict("bfloat16", **FLOAT32).status == "pass"


def test_float16_where_the_layers_scale_their_states_blocks() -> None:
    found = verdict(**DEEPSEEK)
    assert found.status == "block"
    assert "deepseek_v3 in float16" in found.saw
    assert "routed_scaling_factor 2.5" in found.saw
    assert found.todo == 'Set model.dtype = "bfloat16".'
    assert verdict("float16", text_type="kimi_k2", routed_scale=2.8).status == "block"
    named = {**DEEPSEEK, "text_type": "own", "architecture": "A, PanguUltraMoEForCausalLM"}
    assert verdict(**named).status == "block"
    assert verdict("bfloat16", **DEEPSEEK).status == "warn"  # a cast, and no scale
    assert verdict(**{**DEEPSEEK, "routed_scale": 1.0}).status == "pass"
    assert verdict(**{**DEEPSEEK, "text_type": "dots1"}).status == "pass"
    assert verdict(engine="transformers", **DEEPSEEK).status == "pass"


def test_a_type_that_vllm_refuses_in_float16_blocks() -> None:
    assert verdict("float16", model_type="gemma3", text_type="gemma3_text").status == "block"


def test_bfloat16_on_a_gpu_without_it_blocks_and_an_unknown_gpu_does_not() -> None:
    found = verdict(gpu=T4)
    assert found.status == "block"
    assert "GPU 0 (Tesla T4) has compute capability 7.5, which computes it from 8.0 on" in found.saw
    assert verdict(gpu=None).status == "pass"
    assert verdict(gpu=T4, **FLOAT16).status == "pass"


def test_a_cast_between_the_16_bit_dtypes_warns() -> None:
    found = verdict("float16")
    assert found.status == "warn"
    assert "bfloat16 weights are cast to float16" in found.saw


def test_tensors_of_another_dtype_than_the_config_warn() -> None:
    found = verdict(dtypes={"F32": 3 * 2**30, "BF16": 10})
    assert found.status == "warn"
    assert "config.json says bfloat16, the shards hold 3.0 GiB in float32" in found.saw
    assert verdict(dtypes={"F32": 10, "BF16": 1000}).status == "pass"
    assert verdict(dtypes={"U8": 10}).status == "pass"


def test_a_quantised_checkpoint_says_what_its_states_are() -> None:
    found = verdict(quantisation=INT4, dtypes={"I32": 10, "F32": 9})
    assert found.status == "pass"
    assert "compressed-tensors, dequantised as they are used" in found.saw
    mxfp4 = quantised.describe({"quant_method": "mxfp4"})
    found = verdict("float16", quantisation=mxfp4)
    assert found.status == "block"
    assert "vLLM 0.16 computes mxfp4 in bfloat16 alone" in found.saw


def test_what_cannot_be_told() -> None:
    assert verdict(problem="does not exist").status == "skip"
    assert verdict(dtype="", shards=0).status == "skip"
    found = verdict(dtype="")
    assert found.status == "warn"
    assert "neither config.json nor the tensors name a dtype" in found.saw
    silent = Facts(silent={"model": "did not answer within 30 s"})
    assert dtype.CHECK.decide(silent, profile()).status == "warn"


def test_auto_engine_without_vllm_is_transformers() -> None:
    facts = known(
        (PROBE, ModelFacts(**{**BF16.__dict__, **DEEPSEEK})),
        (INTERPRETER, InterpreterFacts("/p", dists={"torch": "2.10.0", "transformers": "4.57"})),
    )
    assert dtype.CHECK.decide(facts, profile()).status == "pass"


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_a_real_folder(tmp_path: Any, stored: str) -> None:
    folder = models.make_checkpoint(tmp_path / "m", shards=1)
    models.write_safetensors(
        folder / "model.safetensors",
        {f"model.layers.{i}.w": (stored, (64, 64)) for i in range(4)},
    )
    asked = profile(model_path=str(folder))
    found = dtype.CHECK.decide(gather(PROBE, asked), asked)
    assert found.status == ("warn" if stored == "F32" else "pass")
