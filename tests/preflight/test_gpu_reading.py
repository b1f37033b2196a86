"""The GPU probe for real: the real pynvml over hosts that the NVML double pretends to be."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.preflight.actions import perform
from eagle3_agent.preflight.check import Facts
from eagle3_agent.preflight.gpus import (
    clean,
    count,
    driver,
    gpu_facts,
    health,
    links,
    modes,
    reading,
)
from eagle3_agent.preflight.gpus.gpu_facts import PROBE, GpuFacts
from eagle3_agent.preflight.gpus.reading import Look
from eagle3_agent.protocol.values import Gpu, Profile
from support import nvml_double
from support.preflight import gather, gone, profile, until

MIB = 1024**2
Host = Callable[..., GpuFacts]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(library: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Facts of a host with these lines of the double's file."""

    def be(*says: str, gpus: int = 8, scenario: nvml_double.Scenario = "healthy") -> GpuFacts:
        for name, value in nvml_double.environment(library, scenario, gpus=gpus, says=says).items():
            monkeypatch.setenv(name, value)
        return gather(PROBE, wanting(gpus)).get(PROBE)

    return be


def wanting(ranks: int, **changes: object) -> Profile:
    return profile(model_tensor_parallel_size=ranks, engine_name="vllm", **changes)


def facts(seen: GpuFacts) -> Facts:
    return Facts({PROBE.name: seen})


def unread(seen: GpuFacts) -> dict[int, str]:
    return {g.index: g.error for g in seen.sample.gpus if g.error}


CHECKS = (count.CHECK, clean.CHECK, health.CHECK, modes.CHECK, driver.CHECK, links.CHECK)


@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_healthy_gpus_pass_every_check(host: Host, gpus: int) -> None:
    seen = host(gpus=gpus)
    assert len(seen.health) == len(seen.sample.gpus) == gpus
    assert len(seen.pairs) == gpus * (gpus - 1) // 2
    for check in CHECKS:
        found = check.decide(facts(seen), wanting(gpus))
        assert found.status == "pass", found
        assert len(found.saw) < 300


@pytest.mark.parametrize("gpus", [8, 16])
def test_it_takes_little(host: Host, gpus: int) -> None:
    """CPU seconds of its processes: what it takes on a host that has nothing else to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    host(gpus=gpus)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_a_real_process_that_holds_memory_is_named_and_can_be_ended(host: Host) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()", "held"], stdin=subprocess.PIPE)
    try:
        seen = host(f"process=3:{child.pid}:60000")
        found = clean.CHECK.decide(facts(seen), wanting(8))
        assert found.status == "block"
        assert f"GPU 3: 58.6 GiB of 95.6 GiB in use, held by pid {child.pid} " in found.saw
        (action,) = [a for a in found.actions if a.kind == "terminate"]
        assert [p.pid for p in action.processes] == [child.pid]
    finally:
        child.communicate()


def test_ending_the_holder_helps(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked, checked again, ended, judged again; the memory is free once the process has left."""
    leaves = (
        "import os, signal, sys, time\n"
        "def leave(number, frame):\n"
        "    open(sys.argv[1], 'w').write('gpus=1\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave); print(flush=True); time.sleep(600)\n"
    )
    config = library.with_name("leaves.conf")
    child = subprocess.Popen([sys.executable, "-c", leaves, config], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        held = nvml_double.environment(
            library, gpus=1, processes=[(0, child.pid, 900)], name=config.name
        )
        for name, value in held.items():
            monkeypatch.setenv(name, value)
        before = perform.look(clean.CHECK, wanting(1))
        asked = perform.Request(wanting(1), "gpu-clean", before.actions[0])
        result = perform.perform(asked)
        assert result.refusal is None, result
        assert result.helped
        assert result.verdict is not None
        assert result.verdict.status == "pass"
        assert child.wait() == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_the_dead_are_not_to_be_ended(host: Host) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: gone(child.pid))
    try:
        found = clean.CHECK.decide(facts(host(f"process=0:{child.pid}:900")), wanting(8))
        assert found.actions == ()
        assert f"pid {child.pid} is not to be ended: it is dead already" in found.todo
    finally:
        child.wait()


def test_this_process_is_never_offered(host: Host) -> None:
    found = clean.CHECK.decide(facts(host(f"process=3:{os.getpid()}:60000")), wanting(8))
    assert found.status == "block"
    assert found.actions == ()
    assert f"pid {os.getpid()} is not to be ended: the agent itself" in found.todo


def test_a_pid_of_another_namespace_is_nobody_here(host: Host) -> None:
    found = clean.CHECK.decide(facts(host(f"process=0:{2**22 + 9}:60000")), wanting(8))
    assert found.status == "block"
    assert "unknown user" in found.saw
    assert found.actions == ()
    assert "kill" not in found.todo


def test_the_lost_gpu_of_eight_is_named_and_the_others_are_judged(host: Host) -> None:
    seen = host(scenario="lost")
    assert list(unread(seen)) == [3]
    found = count.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "block"
    assert "GPU 3: cannot be read: GPU is lost" in found.saw
    assert [h.index for h in seen.health] == [0, 1, 2, 4, 5, 6, 7]
    assert health.CHECK.decide(facts(seen), wanting(8)).status == "pass"


def test_a_gpu_that_is_lost_between_two_questions_is_lost(host: Host) -> None:
    seen = host("error=2:nvmlDeviceGetRemappedRows:15")
    assert "GPU is lost" in unread(seen)[2]
    assert [h.index for h in seen.health] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("scenario", "words"), [("not-loaded", "no NVIDIA driver"), ("mismatch", "version mismatch")]
)
def test_a_driver_that_does_not_answer_is_told_in_words(
    host: Host, scenario: nvml_double.Scenario, words: str
) -> None:
    seen = host(scenario=scenario)
    found = count.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "block"
    assert found.saw.startswith("no GPU: ")
    assert words in found.saw
    assert seen.library == "580.95.05"


def test_the_library_is_known_when_the_module_is_another(host: Host) -> None:
    seen = host("library=590.10", "init=mismatch")
    found = driver.CHECK.decide(facts(seen), wanting(8))
    assert (seen.library, found.status) == ("590.10", "block")
    assert "library 590.10" in found.saw


# ------------------------------------------------------------------ hanging calls


def test_a_call_that_hangs_costs_its_gpu_alone(host: Host) -> None:
    began = time.monotonic()
    seen = host("hang=5", "process=6:1:900")
    assert time.monotonic() - began < 8.0
    assert unread(seen) == {5: "an NVML call hangs in the driver (nvmlDeviceGetMemoryInfo)"}
    assert [h.index for h in seen.health] == [0, 1, 2, 3, 4, 6, 7]
    assert len(seen.pairs) == 21
    found = count.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "block"
    assert "GPU 5: cannot be read: an NVML call hangs" in found.saw
    held = clean.CHECK.decide(facts(seen), wanting(8))
    assert held.saw.startswith("GPU 6: 900.0 MiB")


def test_a_hang_outside_the_run_only_warns(host: Host) -> None:
    seen = host("stall=7:nvmlDeviceGetTotalEccErrors")
    assert list(unread(seen)) == [7]
    found = count.CHECK.decide(facts(seen), wanting(4))
    assert found.status == "warn"
    assert "nvmlDeviceGetTotalEccErrors" in found.saw


def test_two_gpus_that_hang_are_both_named(host: Host) -> None:
    seen = host("stall=0:nvmlDeviceGetUUID", "stall=3:nvmlDeviceGetNvLinkState", "value=3:links:2")
    assert list(unread(seen)) == [0, 3]
    assert seen.sample.gpus[3].uuid  # what it said before is kept


def test_pairs_that_hang_leave_the_gpus_as_they_are(host: Host) -> None:
    seen = host("stall=0:nvmlDeviceGetP2PStatus")
    assert unread(seen) == {}
    assert seen.pairs == ()
    found = links.CHECK.decide(facts(seen), wanting(8))
    assert "how they reach each other NVML does not say: an NVML call hangs" in found.saw


def test_an_nvml_that_does_not_open_is_said_of_all(host: Host) -> None:
    seen = host(scenario="init-hangs")
    assert seen.sample.gpus == ()
    found = count.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "block"
    assert "an NVML call hangs in the driver (nvmlInit)" in found.saw


# ------------------------------------------------------------------ children that misbehave

_HOST = 'host {"driver": "580", "cuda": "13.0", "count": 4}'
_GPU = 'at 0\\ngpu {"index": 0, "name": "read"}'


def looked(monkeypatch: pytest.MonkeyPatch, first: str, then: str = "", **limits: float) -> Look:
    """What is made of a child with this code, and of the others, which are told who hung."""
    code = f"import os, sys, time\nif not sys.argv[3]:\n    {first}\nelse:\n    {then or 'pass'}\n"
    monkeypatch.setattr(reading, "_CHILD", code)
    return reading.look(**{"opening": 1.0, "call": 0.5, "whole": 10.0, **limits})


def test_a_driver_that_hangs_as_a_whole_after_one_gpu_did(monkeypatch: pytest.MonkeyPatch) -> None:
    first = (
        f"print({_HOST!r}, '{_GPU}', 'at 1', 'call nvmlX', sep='\\n', flush=True); time.sleep(60)"
    )
    seen = looked(monkeypatch, first, "time.sleep(60)")
    assert seen.gpus[0].name == "read"
    assert seen.gpus[1].error == "an NVML call hangs in the driver (nvmlX)"
    assert seen.gpus[2].error == seen.gpus[3].error
    assert seen.gpus[2].error == (
        "not read: an NVML call hangs in the driver (nvmlInit) (after GPU 1 hung)"
    )


def test_a_library_that_crashes_at_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    first = (
        f"print({_HOST!r}, 'at 2', 'call nvmlX', sep='\\n', flush=True); os.kill(os.getpid(), 11)"
    )
    then = "print('at 0', 'gpu {\"index\": 0, \"name\": \"read\"}', 'end null', sep='\\n')"
    seen = looked(monkeypatch, first, then)
    assert seen.gpus[2].error == "the process that asks NVML ended (nvmlX, status -11)"
    assert seen.gpus[0].name == "read"


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("sys.exit(3)", "ended (nvmlInit, status 3)"),
        ("print('gpu {')", "NVML's answers cannot be read"),
        ("print('gpu ' + '[' * 100000)", "NVML's answers cannot be read"),
        ("sys.stdout.write('x' * 3000000)", "NVML's answers cannot be read: a line without end"),
        ("print('call /proc/77', flush=True); time.sleep(60)", "reading /proc/77 hangs"),
    ],
)
def test_a_child_that_brings_no_list(
    monkeypatch: pytest.MonkeyPatch, first: str, words: str
) -> None:
    seen = looked(monkeypatch, first)
    assert words in seen.problem
    assert seen.gpus == {}


def test_the_whole_is_bounded_however_many_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    first = f"print({_HOST!r}, 'at 0', 'call nvmlX', sep='\\n', flush=True); time.sleep(60)"
    then = (
        "print('at', sys.argv[3].count(',') + 1); print('call nvmlX', flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    seen = looked(monkeypatch, first, then, call=1.0, whole=2.5)
    assert time.monotonic() - began < 6.0
    assert sorted(seen.gpus) == [0, 1, 2, 3]
    assert all(gpu.error for gpu in seen.gpus.values())


# ------------------------------------------------------------------ odd answers


def test_garbage_in_one_field_is_unknown_and_told(host: Host) -> None:
    seen = host("value=2:temperature:4000000000", "value=4:pcie_width:1234567")
    assert seen.sample.gpus[2].temperature is None
    assert seen.sample.gpus[2].memory_used == 0
    assert seen.health[4].pcie.width is None
    found = health.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "warn"
    assert "GPU 2: NVML answers what cannot be: temperature 4e+09" in found.saw
    assert "GPU 4: NVML answers what cannot be: PCIe CurrPcieLinkWidth 1234567" in found.saw


@pytest.mark.parametrize("key", ["memory_total", "memory_used"])
def test_garbage_memory_is_never_taken_for_clean(host: Host, key: str) -> None:
    seen = host(f"value=1:{key}:-1")
    found = clean.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "warn"
    assert "does not say how much memory is in use on GPU 1" in found.saw


def test_an_error_of_one_question_does_not_cost_the_gpu(host: Host) -> None:
    seen = host("error=1:nvmlDeviceGetPowerUsage:999")
    assert unread(seen) == {}
    assert seen.sample.gpus[1].power is None
    assert health.CHECK.decide(facts(seen), wanting(8)).status == "warn"


def test_a_gpu_that_answers_nothing_cannot_be_read(host: Host) -> None:
    names = ("UUID", "Name", "MemoryInfo", "MemoryInfo_v2", "UtilizationRates", "Temperature",
             "PowerUsage", "EnforcedPowerLimit", "ComputeRunningProcesses_v3",
             "GraphicsRunningProcesses_v3")  # fmt: skip
    seen = host(*(f"error=1:nvmlDeviceGet{name}:999" for name in names))
    assert "Unknown Error" in unread(seen)[1]


def test_a_question_that_makes_no_sense_for_a_part_is_no_fault(host: Host) -> None:
    seen = host("error=1:nvmlDeviceGetRemappedRows:2", "error=1:nvmlDeviceGetTotalEccErrors:26")
    assert seen.health[1].odd == ()
    assert seen.health[1].errors.remapped is None
    assert health.CHECK.decide(facts(seen), wanting(8)).status == "pass"


def test_no_permission_is_not_an_error(host: Host) -> None:
    seen = host(
        "error=*:nvmlDeviceGetTotalEccErrors:4",
        "error=*:nvmlDeviceGetComputeMode:4",
        "error=*:nvmlDeviceGetCurrentClocksEventReasons:4",
        "error=*:nvmlDeviceGetComputeRunningProcesses_v3:4",
    )
    assert unread(seen) == {}
    assert all(h.odd == () for h in seen.health)
    found = health.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "pass"
    assert "NVML does not say for all of them: ECC errors, clocks" in found.saw
    assert "NVML does not say: compute mode" in modes.CHECK.decide(facts(seen), wanting(8)).saw


def test_no_memory_info_is_said(host: Host) -> None:
    seen = host("error=*:nvmlDeviceGetMemoryInfo:3", "error=*:nvmlDeviceGetMemoryInfo_v2:3")
    assert [g.memory_total for g in seen.sample.gpus] == [None] * 8
    found = clean.CHECK.decide(facts(seen), wanting(8))
    assert found.status == "warn"
    assert "on GPU 0-7" in found.saw


# ------------------------------------------------------------------ slices


def test_a_run_on_a_mig_slice(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = "MIG-5131a7ed-0000-4000-8000-000002000001"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", slice_)
    seen = host("value=2:mig:1", "value=2:slices:3", f"process=2:{os.getpid()}:5000:1")
    assert len(seen.health[2].slices) == 3
    found = clean.CHECK.decide(facts(seen), wanting(1))
    assert found.status == "block"
    assert "GPU 2: 4.9 GiB of 17.6 GiB in use" in found.saw
    assert count.CHECK.decide(facts(seen), wanting(1)).status == "pass"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", slice_[:-1] + "2")
    seen = host("value=2:mig:1", "value=2:slices:3", f"process=2:{os.getpid()}:5000:1")
    assert clean.CHECK.decide(facts(seen), wanting(1)).status == "pass"


def test_a_slice_without_memory_info_is_not_taken_for_clean(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5131a7ed-0000-4000-8000-000000000000")
    seen = host(
        "value=0:mig:1",
        "value=0:slices:1",
        "error=0:nvmlDeviceGetMemoryInfo:3",
        "error=0:nvmlDeviceGetMemoryInfo_v2:3",
    )
    assert clean.CHECK.decide(facts(seen), wanting(1)).status == "warn"


# ------------------------------------------------------------------ this machine, and text


def test_this_machine_as_it_is() -> None:
    seen = gather(PROBE, wanting(1)).get(PROBE)
    assert seen.sample.gpus or seen.sample.gpu_problem
    for check in CHECKS:
        assert check.decide(facts(seen), wanting(1)).saw


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC: 12",
            "570.86.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54", "550.54"),
        ("GCC version:  gcc version 12.3.0", ""),
        ("", ""),
    ],
)
def test_the_modules_version(text: str, version: str) -> None:
    assert gpu_facts.module_version(text) == version


def test_a_gpu_is_believed_within_reason() -> None:
    from eagle3_agent.nvml import believable

    odd: list[str] = []
    gpu = Gpu(0, "u", "n", 5, 4, 101, -300, 1e9, None)
    seen = believable(gpu, odd)
    assert seen == replace(gpu, memory_used=None, utilization=None, temperature=None, power=None)
    assert len(odd) == 4


def test_a_library_that_is_none_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library" * 100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = reading.look()
    assert found.problem.endswith("(libnvidia-ml.so.1 is not there, or does not load)")


def test_a_call_that_crashes_names_it_and_costs_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that kills its process at GPU 1's name, whoever asks."""
    text = nvml_double.SOURCE.read_text()
    head = "int nvmlDeviceGetName(Device device, char *out, unsigned size)\n{"
    assert head in text
    crashing = f"{head}\n    if (device->index == 1) __builtin_trap();"
    source = tmp_path / "double.c"
    source.write_text(text.replace(head, crashing))
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    for name, value in nvml_double.environment(library, gpus=3).items():
        monkeypatch.setenv(name, value)
    found = reading.look()
    assert found.gpus[1].error.startswith("the process that asks NVML ended (nvmlDeviceGetName,")
    assert [found.gpus[index].error for index in (0, 2)] == ["", ""]
