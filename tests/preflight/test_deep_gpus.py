"""Deep checks on GPUs: which of them are exercised, and every verdict from its facts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent import processes, runs
from eagle3_agent.preflight.check import Check, known
from eagle3_agent.preflight.deep import aim, allreduce, compute, peers
from eagle3_agent.preflight.deep.allreduce import AllReduceFacts, Rank, Round
from eagle3_agent.preflight.deep.compute import ComputeFacts, Exercised
from eagle3_agent.preflight.deep.peers import Pair, PeersFacts
from eagle3_agent.protocol.values import Gpu, GpuProcess, Verdict
from eagle3_agent.runs import Exit, Guardian
from support import needs
from support.preflight import gather, profile

GIB = 1 << 30


def gpu(index: int, **changes: Any) -> Gpu:
    values = {"uuid": f"GPU-{index}", "name": "H200", "memory_used": 0, "memory_total": 140 * GIB}
    return Gpu(index, **{**values, **changes})


def decide(check: Check, facts: Any) -> Verdict:
    return check.decide(known((check.needs[0], facts)), profile())


# ------------------------------------------------------------------ which GPUs


def test_the_runs_first_gpus_are_taken_and_no_other() -> None:
    found = aim.judge("vllm", 2, tuple(gpu(i) for i in range(4)), {})
    assert [g.index for g in found.gpus] == [0, 1]
    assert found.whole
    assert found.uuids == "GPU-0,GPU-1"
    few = aim.judge("vllm", 4, (gpu(0),), {})
    assert not few.whole


def test_transformers_takes_the_one_with_most_room() -> None:
    found = aim.judge("transformers", 1, (gpu(0, memory_used=GIB // 8), gpu(1)), {})
    assert [g.index for g in found.gpus] == [1]


@pytest.mark.parametrize(
    ("changes", "claims", "words"),
    [
        ({"error": "GPU is lost"}, {}, "cannot be read: GPU is lost"),
        ({}, {"gpu:GPU-0": "0007"}, "belongs to run 0007, which goes on"),
        ({}, {"gpu:*": "0007"}, "belongs to run 0007"),
        ({"memory_used": 3 * GIB}, {}, "in use: 3.0 GiB are held by processes"),
        (
            {"processes": (GpuProcess(4821, "ann", "python3 serve.py", 58 * GIB),)},
            {},
            "in use by 1 process: pid 4821 (python3 serve.py)",
        ),
        # another pid namespace: no size and no name, and still somebody
        ({"processes": (GpuProcess(4821, "", "", None),)}, {}, "in use by 1 process: pid 4821"),
        ({"uuid": ""}, {}, "no UUID"),
    ],
)
def test_a_gpu_that_is_not_free_is_left_alone(
    changes: dict[str, Any], claims: dict[str, str], words: str
) -> None:
    found = aim.judge("vllm", 1, (gpu(0, **changes),), claims)
    assert found.gpus == ()
    assert words in found.refused
    beside = aim.judge("vllm", 2, (gpu(0, **changes), gpu(1)), claims)
    if "gpu:*" not in claims:
        assert [g.index for g in beside.gpus] == [1]
        assert words in beside.left_out[0]
        assert not beside.whole


def test_a_display_server_is_nobody() -> None:
    held = (GpuProcess(900, "root", "Xorg", 40 << 20),)
    assert aim.judge("vllm", 1, (gpu(0, memory_used=60 << 20, processes=held),), {}).whole


def test_only_living_runs_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path))
    me = processes.identity(os.getpid())
    assert me is not None
    host = os.uname().nodename
    alive = Guardian(me.pid, me.start_time, processes.boot_id(), host)
    folders = [
        runs.create(profile(), "vllm", attempt=1, claims=(f"gpu:GPU-{i}",)) for i in range(4)
    ]
    folders[0].write_guardian(alive)
    folders[1].write_guardian(replace(alive, start_time=me.start_time + 1))  # the pid of another
    folders[2].write_guardian(alive)
    folders[2].write_exit(Exit("completed", 1.0))
    assert aim.claimed() == {"gpu:GPU-0": "0001"}  # the fourth has no supervisor yet
    watch = aim.Watch(aim.Aim("vllm", 1, (gpu(0),)))
    monkeypatch.setattr(aim, "_RUNS_EVERY", 0.0)
    assert "run 0001 began meanwhile" in watch()
    assert aim.Watch(aim.Aim("vllm", 1, (gpu(3),)))() == ""


def test_the_engine_sees_the_gpus_as_a_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # of a torchrun around the agent
    asked = profile(host_env={"CUDA_VISIBLE_DEVICES": "4,5", "NCCL_P2P_DISABLE": "1"})
    pinned = aim.environment(asked, "GPU-1")
    assert (pinned["CUDA_VISIBLE_DEVICES"], pinned["NCCL_P2P_DISABLE"]) == ("GPU-1", "1")
    assert "RANK" not in pinned
    own = aim.environment(asked, None)
    assert (own["CUDA_VISIBLE_DEVICES"], own["CUDA_DEVICE_ORDER"]) == ("4,5", "PCI_BUS_ID")


# ------------------------------------------------------------------ gpu-compute


def exercised(index: int, tflops: float | None = 700.0, **changes: Any) -> Exercised:
    report = compute.Reported("done", "", 100 * GIB, 0, 0, 0, 8192, "bfloat16", tflops, tflops)
    mine = {k: changes.pop(k) for k in ("ended", "words") if k in changes}
    made = Exercised(index, "H200", 9.0, **{"ended": "", **mine})
    return replace(made, report=replace(report, **changes))


def test_gpus_that_compute_alike_pass_with_figures() -> None:
    found = decide(compute.CHECK, ComputeFacts(gpus=(exercised(0), exercised(1, 640.0))))
    assert found.status == "pass"
    assert "GPU 0: 100.0 GiB of memory all right, bfloat16 product exact, 700 TFLOP/s" in found.saw


def test_a_slow_gpu_is_named_against_the_median() -> None:
    gpus = (exercised(0), exercised(1, 500.0), exercised(2, 710.0))
    found = decide(compute.CHECK, ComputeFacts(gpus=gpus))
    assert found.status == "warn"
    assert "GPU 1 (500 of 700 TFLOP/s, 29 % less)" in found.saw
    # of another kind there is nothing to compare with
    other = replace(exercised(1, 100.0), name="L4")
    assert decide(compute.CHECK, ComputeFacts(gpus=(exercised(0), other))).status == "pass"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bad_words": 3}, "3 words of it wrong"),
        ({"wrong": 1}, "product 1 element wrong"),
        ({"wrong_late": 2}, "product 2 elements wrong"),
    ],
)
def test_wrong_memory_or_products_block(changes: dict[str, Any], words: str) -> None:
    found = decide(compute.CHECK, ComputeFacts(gpus=(exercised(0), exercised(1, **changes))))
    assert found.status == "block"
    assert words in found.saw
    assert found.why.startswith("GPU 1 gives wrong")


def test_a_failure_blocks_with_where_it_was() -> None:
    failed = exercised(
        1,
        ended="ended with status 1",
        phase="multiply",
        problem="AcceleratorError: CUDA error: an illegal\x1b[31m memory access",
        wrong=None,
        wrong_late=None,
        tflops=None,
    )
    found = decide(compute.CHECK, ComputeFacts(gpus=(exercised(0), failed)))
    assert found.status == "block"
    assert "ended with status 1 at: multiply (AcceleratorError" in found.saw
    assert "\x1b" not in found.saw


def test_what_was_not_exercised_is_a_skip_or_a_warning() -> None:
    assert decide(compute.CHECK, ComputeFacts("no GPU: no driver")).status == "skip"
    found = decide(compute.CHECK, ComputeFacts("", ("GPU 1 is in use",), (exercised(0),)))
    assert found.status == "warn"
    assert "not exercised: GPU 1 is in use" in found.saw
    assert compute.CHECK.decide(known(), profile()).status == "warn"


# ------------------------------------------------------------------ gpu-peers


def peered(*pairs: Pair, **changes: Any) -> PeersFacts:
    access = ((False, True), (True, False))
    report = peers.Reported("done", "", access, pairs)
    values = {"gpus": (2, 5), "report": report, "seconds": 9.0}
    return PeersFacts(**{**values, **changes})


def test_peers_pass_with_matrix_and_speeds() -> None:
    found = decide(peers.CHECK, peered(Pair(0, 1, 400e9, 0), Pair(1, 0, 380e9, 0)))
    assert found.status == "pass"
    assert "direct access between 2 of 2 ordered pairs" in found.saw
    assert "2 pairs: 380 to 400 GB/s, bytes right in 2" in found.saw


def test_wrong_bytes_between_peers_block_by_the_gpus_own_numbers() -> None:
    found = decide(peers.CHECK, peered(Pair(0, 1, 20e9, 4096), Pair(1, 0, 20e9, 0)))
    assert found.status == "block"
    assert "GPU 2 to 5 (4 096 words)" in found.saw
    assert "NCCL_P2P_DISABLE" in found.todo


def test_a_slow_pair_warns_and_a_hang_blocks() -> None:
    slow = decide(peers.CHECK, peered(Pair(0, 1, 400e9, 0), Pair(1, 0, 20e9, 0)))
    assert slow.status == "warn"
    assert "GPU 5 to 2 (20 GB/s)" in slow.saw
    report = peers.Reported("copy from 0 to 1", "", ((False, True), (True, False)))
    hung = decide(peers.CHECK, peered(report=report, ended="did not come to its end within 60 s"))
    assert hung.status == "block"
    assert "at: copy from 0 to 1" in hung.saw


def test_no_peers_are_a_skip_and_no_device_a_warning() -> None:
    assert decide(peers.CHECK, PeersFacts("the run has one rank")).status == "skip"
    report = peers.Reported("open the devices", "NoDevice: torch 2 is built without CUDA")
    found = decide(peers.CHECK, peered(report=report, ended="ended with status 1"))
    assert found.status == "warn"


# ------------------------------------------------------------------ nccl


def rank(number: int, *rounds: Round, phase: str = "done", **changes: Any) -> Rank:
    problem = changes.pop("problem", "")
    ended = changes.pop("ended", "")
    report = allreduce.Reported(phase, problem, "2.27.5", rounds)
    return Rank(number, number, ended, "", report)


def test_an_all_reduce_passes_with_both_bandwidths() -> None:
    rounds = (Round(1 << 20, 50e-6, 0), Round(256 << 20, 1e-3, 0))
    found = decide(allreduce.CHECK, AllReduceFacts("", tuple(rank(i, *rounds) for i in range(8))))
    assert found.status == "pass"
    # 268 MB in 1 ms; times 2 x 7 / 8
    assert "256.0 MiB in 1000 µs (268 GB/s, bus 470 GB/s)" in found.saw
    assert "NCCL 2.27.5, 8 ranks" in found.saw


def test_slow_links_warn_and_wrong_sums_block() -> None:
    slow = (Round(256 << 20, 1.0, 0),)
    assert decide(allreduce.CHECK, AllReduceFacts("", (rank(0, *slow), rank(1, *slow)))).status == (
        "warn"
    )
    bad = (rank(0, Round(4096, 1e-5, 0)), rank(1, Round(4096, 1e-5, 7)))
    found = decide(allreduce.CHECK, AllReduceFacts("", bad))
    assert found.status == "block"
    assert "wrong sums at rank 1 (GPU 1)" in found.saw


def test_a_rank_that_is_missing_is_named_with_what_nccl_said() -> None:
    waits = {"phase": "meet the other ranks", "ended": "did not come to its end within 60 s"}
    ranks = (
        rank(0, **waits),
        rank(1, phase="open the device", ended="ended with status 1", problem="RuntimeError: x"),
        rank(2, **waits),
    )
    found = decide(
        allreduce.CHECK, AllReduceFacts("", ranks, ("NCCL WARN Cuda failure 'peer access'",))
    )
    assert found.status == "block"
    assert "did not arrive: rank 1 on GPU 1 (at: open the device)" in found.saw
    assert "rank 1: RuntimeError: x" in found.saw
    assert "NCCL WARN Cuda failure" in found.saw
    assert allreduce.missing((rank(0, **waits), rank(2, **waits))) == []


def test_no_ranks_are_a_skip() -> None:
    found = decide(allreduce.CHECK, AllReduceFacts("the run has one rank: nothing is reduced"))
    assert found.status == "skip"


# ------------------------------------------------------------------ on this machine


@pytest.fixture(scope="module")
def python() -> Path:
    """Looked for before each test gets a home of its own."""
    return needs.worker_python()


@pytest.mark.parametrize("check", [compute.CHECK, peers.CHECK, allreduce.CHECK])
def test_a_host_without_gpus_is_an_honest_skip(
    check: Check, monkeypatch: pytest.MonkeyPatch, python: Path
) -> None:
    """The real probes, under an interpreter with torch."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = profile(
        host_python=str(python),
        engine_name="vllm",
        model_tensor_parallel_size=2,
    )
    found = check.decide(gather(check.needs[0], asked, deep=True), asked)
    assert found.status == "skip", found.saw
    assert "no GPU: " in found.saw


def test_an_interpreter_that_is_not_there_is_a_skip() -> None:
    asked = profile(host_python="/nowhere/python", engine_name="vllm")
    found = compute.CHECK.decide(gather(compute.PROBE, asked, deep=True), asked)
    assert found.status == "skip"
    assert "/nowhere/python does not exist" in found.saw
