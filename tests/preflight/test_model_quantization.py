"""Quantised weights: their form in words, what vLLM and the GPU must have, and broken configs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_agent import nvml
from eagle3_agent.nvml_facts import Health, Slice
from eagle3_agent.preflight.check import Ask, Facts, known
from eagle3_agent.preflight.gpus.gpu_facts import PROBE as GPUS
from eagle3_agent.preflight.gpus.gpu_facts import GpuFacts
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.preflight.model import capability, quantised
from eagle3_agent.preflight.model import quantization as check
from eagle3_agent.preflight.model.capability import CapabilityFacts, Device
from eagle3_agent.preflight.model.model_facts import PROBE, ModelFacts
from eagle3_agent.protocol.values import EngineName, Gpu, HostSample, Verdict
from support import models
from support.preflight import gather, profile


def group(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> Any:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, "input_activations": inputs}},
        **more,
    }


KIMI = group(
    {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}, format="pack-quantized"
)
FP8 = {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("section", "method", "bits", "form", "least"),
    [
        (KIMI, "compressed-tensors", 4, "4-bit integers in groups of 32, pack-quantized", 75),
        (group(FP8, FP8), "compressed-tensors", 8, "8-bit floats", 75),
        (group(FP8), "compressed-tensors", 8, "8-bit floats", 75),
        (group({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}),
         "compressed-tensors", 8, "8-bit integers", 75),
        (group({"num_bits": 4, "type": "float", "group_size": 16}), "compressed-tensors", 4,
         "4-bit floats in groups of 16", 75),
        (group({"num_bits": 4, "type": "float", "group_size": 32}), "compressed-tensors", 4,
         "4-bit floats in groups of 32", 80),
        (group({"num_bits": 4, "type": "int"}, FP8), "compressed-tensors", 4, "4-bit integers", 90),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", 4,
         "4-bit integers in groups of 128", 75),
        ({"quant_method": "gptq", "bits": 3}, "gptq", 3, "3-bit integers", 60),
        ({"quant_method": "AWQ", "w_bit": 4, "q_group_size": 64}, "awq", 4,
         "4-bit integers in groups of 64", 75),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
         "fp8", 8, "8-bit floats in blocks of 128 x 128", 75),
        ({"quant_method": "mxfp4"}, "mxfp4", 4, "4-bit floats with a shared scale", 80),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes", 4, "4-bit nf4", 70),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", 8, "8-bit", 70),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", 8, "FP8", 89),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, "modelopt", 4,
         "NVFP4", 75),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "modelopt", 8, "MXFP8", 100),
    ],
)  # fmt: skip
def test_methods(section: Any, method: str, bits: int, form: str, least: int) -> None:
    found = quantised.describe(section)
    assert (found.method, found.bits) == (method, bits)
    assert form in found.form
    rule = quantised.rule(found)
    assert rule is not None
    assert rule.capability == least


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": 5, "config_groups": []},
        {"quant_method": "compressed-tensors", "config_groups": {"a": 3, "b": {"weights": []}}},
        group({"num_bits": "4", "type": {}, "group_size": -1}, {"type": []}),
        {"quant_method": "fp8", "weight_block_size": "x", "activation_scheme": 3},
        {"quant_method": "modelopt", "quantization": 5},
        {"quant_method": "gptq", "bits": True},
        {"quant_method": "x" * 10_000},
    ],
)
def test_nonsense_is_described_without_a_fuss(section: Any) -> None:
    assert len(quantised.describe(section).method) <= 60


def verdict(
    section: dict[str, Any] | None,
    engine: EngineName = "vllm",
    gpu: int | None = 90,
    dists: dict[str, str] | None = None,
    **changes: Any,
) -> Verdict:
    seen = ModelFacts(
        "/m", quantisation=quantised.describe(section) if section else quantised.Quantisation(),
        **changes,
    )  # fmt: skip
    devices = () if gpu is None else (Device(0, "GPU", gpu),)
    facts = known(
        (PROBE, seen),
        (capability.PROBE, CapabilityFacts(devices)),
        (INTERPRETER, InterpreterFacts("/p", dists=dists or {})),
    )
    return check.CHECK.decide(facts, profile(engine_name=engine))


def test_plain_weights_pass_and_packed_ones_without_a_word_in_the_config_warn() -> None:
    assert verdict(None).saw == "not quantised"
    found = verdict(None, dtypes={"I32": 800, "BF16": 200})
    assert found.status == "warn"
    assert "800 B of 1000 B of the tensors are integers" in found.saw


def test_a_supported_method_passes_with_its_form_and_the_gpus_capability() -> None:
    found = verdict(KIMI, dtypes={"I32": 800, "BF16": 200})
    assert found.status == "pass"
    assert found.saw == (
        "compressed-tensors: 4-bit integers in groups of 32, pack-quantized; 800 B of 1000 B "
        "packed; GPU 0 (GPU) has compute capability 9.0 (asked: 7.5)"
    )


def test_an_old_gpu_blocks_and_an_unknown_one_is_said_to_be() -> None:
    found = verdict({"quant_method": "modelopt", "quant_algo": "FP8"}, gpu=80)
    assert found.status == "block"
    assert "has compute capability 8.0, vLLM 0.16 asks for 8.9" in found.saw
    found = verdict(KIMI, gpu=None)
    assert found.status == "pass"
    assert "no GPU told its own" in found.saw


def test_unknown_and_deprecated_methods_warn() -> None:
    assert "no method of that name" in verdict({"quant_method": "hqq"}).saw
    assert verdict({"quant_method": "hqq"}).status == "warn"
    found = verdict({"quant_method": "fbgemm_fp8"})
    assert found.status == "warn"
    assert "deprecated" in found.saw


def test_transformers_needs_its_package() -> None:
    found = verdict(KIMI, "transformers")
    assert found.status == "block"
    assert "pip install compressed-tensors" in found.todo
    assert verdict(KIMI, "transformers", dists={"compressed-tensors": "0.13"}).status == "pass"
    found = verdict({"quant_method": "awq", "bits": 4}, "transformers")
    assert found.status == "warn"
    assert "cannot be told without loading" in found.saw


def test_what_was_not_read_is_skipped() -> None:
    assert verdict(KIMI, problem="does not exist").status == "skip"
    silent = Facts(silent={"model": "did not answer within 30 s"})
    assert check.CHECK.decide(silent, profile()).status == "warn"


def test_only_the_runs_gpus_count() -> None:
    devices = CapabilityFacts((Device(0, "old", 70), Device(1, "new", 90), Device(2, "x", 60)))
    sample = HostSample(t=0.0, gpus=tuple(Gpu(i, f"GPU-{i}") for i in range(3)))
    facts = known((capability.PROBE, devices), (GPUS, GpuFacts(sample, "1,2")))
    found = capability.least(facts, profile(model_tensor_parallel_size=1))
    assert found == Device(1, "new", 90)
    both = capability.least(facts, profile(model_tensor_parallel_size=2))
    assert both == Device(2, "x", 60)
    assert capability.least(Facts(), profile()) is None


def test_a_slice_has_the_capability_of_its_gpu() -> None:
    devices = CapabilityFacts((Device(0, "old", 70), Device(1, "new", 90)))
    sample = HostSample(0.0, gpus=(Gpu(0, "GPU-0"), Gpu(1, "GPU-1")))
    seen = GpuFacts(sample, "MIG-1", (Health(1, slices=(Slice("MIG-1"),)),))
    facts = known((capability.PROBE, devices), (GPUS, seen))
    found = capability.least(facts, profile(model_tensor_parallel_size=1))
    assert found is not None
    assert found.index == 1


def test_the_capability_is_asked_of_every_gpu_and_one_that_is_lost_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml

    def capability_of(handle: int) -> list[int]:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return [8, 9]

    lib = SimpleNamespace(**vars(pynvml))
    lib.nvmlInit = lib.nvmlSystemGetDriverVersion = lambda: None
    lib.nvmlSystemGetCudaDriverVersion = lambda: None
    lib.nvmlDeviceGetCount = lambda: 2
    lib.nvmlDeviceGetHandleByIndex = lambda index: index
    lib.nvmlDeviceGetName = lambda handle: b"NVIDIA L40S\x1b"
    lib.nvmlDeviceGetCudaComputeCapability = capability_of
    monkeypatch.setattr(nvml, "_load", lambda: lib)
    found = capability.PROBE.collect(Ask(profile()))
    assert [(d.index, d.capability) for d in found.devices] == [(0, 89)]
    assert found.devices[0].words().endswith("has compute capability 8.9")
    assert "\x1b" not in found.devices[0].words()

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    lib.nvmlInit = no_driver
    assert capability.PROBE.collect(Ask(profile())) == CapabilityFacts()


def test_real_probes(tmp_path: Path) -> None:
    """The folder's config is read; this machine's GPUs, if any, tell what they can."""
    folder = models.make_checkpoint(tmp_path / "m", quantization_config=KIMI)
    asked = profile(model_path=str(folder))
    assert gather(PROBE, asked).get(PROBE).quantisation.bits == 4
    for device in gather(capability.PROBE, asked).get(capability.PROBE).devices:
        assert 30 <= device.capability < 1000
