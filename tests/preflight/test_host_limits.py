"""The limits of a process: open files, threads, core files, locked memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.memory import host_probe, limits, limits_facts
from eagle3_agent.preflight.memory.host_facts import HostFacts
from eagle3_agent.preflight.memory.host_probe import HostSide
from eagle3_agent.preflight.memory.limits_facts import Limit, LimitsFacts, PidsLimit
from eagle3_agent.protocol.values import Verdict
from support.preflight import gather, profile

GIB = 1024**3

#: A user whom nothing bounds.
FREE = LimitsFacts(
    uid=1000,
    files=Limit(65536, 65536),
    core=Limit(0, None),
    core_pattern="core",
    threads=100,
    cores=16,
)


def judged(seen: LimitsFacts, ranks: int = 8) -> Verdict:
    facts = known((host_probe.PROBE, HostSide(HostFacts(), seen)))
    return limits.CHECK.decide(facts, profile(engine_name="vllm", model_tensor_parallel_size=ranks))


def test_a_sound_host_passes_with_its_figures() -> None:
    found = judged(FREE)
    assert found.status == "pass"
    assert "65 536 open files" in found.saw
    assert "core files off" in found.saw


@pytest.mark.parametrize(
    ("limit", "status", "todo"),
    [
        (Limit(64, 64), "block", "nofile in /etc/security/limits.d (the hard limit is 64)"),
        (Limit(256, 256), "warn", "nofile in /etc/security"),
        (Limit(256, 524288), "warn", "ulimit -n 65536"),
        (Limit(256, 4096), "warn", "ulimit -n 4096"),
        (Limit(256, None), "warn", "ulimit -n 65536"),
        (Limit(1024, 4096), "pass", ""),
        (Limit(None, None), "pass", ""),
    ],
)
def test_open_files(limit: Limit, status: str, todo: str) -> None:
    found = judged(replace(FREE, files=limit))
    assert found.status == status
    assert todo in found.todo


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"processes": Limit(4096, 4096)}, "pass"),
        ({"processes": Limit(700, 4096)}, "warn"),  # 600 left; 9 processes start 495 to 639
        ({"processes": Limit(500, 4096)}, "block"),
        ({"processes": Limit(500, 4096), "uid": 0}, "pass"),  # the kernel lets root
        ({"pids": PidsLimit(8192, 50, "/sys/fs/cgroup/pids")}, "pass"),
        ({"pids": PidsLimit(512, 12, "/sys/fs/cgroup/pids")}, "warn"),
        ({"pids": PidsLimit(512, 500, "/sys/fs/cgroup/pids"), "uid": 0}, "block"),
    ],
)
def test_threads(changes: Any, status: str) -> None:
    found = judged(replace(FREE, **changes))
    assert found.status == status
    if status != "pass":
        assert "495 to 639" in found.saw
        assert "OMP_NUM_THREADS" in found.todo


@pytest.mark.parametrize(
    ("core", "pattern", "status"),
    [
        (Limit(None, None), "core", "warn"),
        (Limit(10 * GIB, None), "/var/crash/core.%p", "warn"),
        (Limit(None, None), "|/usr/lib/systemd/systemd-coredump %P", "pass"),
        (Limit(0, None), "core", "pass"),
        (Limit(1024, None), "core", "pass"),
        (Limit(None, None), "", "pass"),
    ],
)
def test_core_files(core: Limit, pattern: str, status: str) -> None:
    found = judged(replace(FREE, core=core, core_pattern=pattern))
    assert found.status == status
    if status == "warn":
        assert ("/var/crash" if pattern.startswith("/") else "the run's folder") in found.saw
        assert "ulimit -c 0" in found.todo


def test_locked_memory_matters_with_infiniband_and_several_ranks() -> None:
    low = replace(FREE, locked=Limit(8 * 1024**2, 8 * 1024**2))
    assert judged(low).status == "pass"
    with_ib = replace(low, infiniband=("mlx5_0", "mlx5_1"))
    found = judged(with_ib)
    assert found.status == "warn"
    assert "mlx5_0, mlx5_1" in found.saw
    assert judged(with_ib, ranks=1).status == "pass"
    assert judged(replace(with_ib, locked=Limit(None, None))).status == "pass"
    assert judged(replace(with_ib, uid=0)).status == "pass"


def test_all_that_is_wrong_is_told_and_a_block_comes_first() -> None:
    found = judged(replace(FREE, files=Limit(64, 64), core=Limit(None, None)))
    assert found.status == "block"
    assert found.saw.splitlines()[0].startswith("64 open files")
    assert found.saw.splitlines()[1].startswith("core files without a limit, written to")
    assert len(found.saw.splitlines()) == 2
    assert "ulimit -c 0" in found.todo


def test_a_silent_probe() -> None:
    found = limits.CHECK.decide(Facts(silent={"host": "hung"}), profile())
    assert (found.status, found.saw) == ("warn", "hung")


def test_a_cgroups_bound_on_processes(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("8:pids:/a/b\n0::/c\n")
    for folder, limit in (("pids/a", "100"), ("pids/a/b", "max"), ("c", "50")):
        place = tmp_path / "sys/fs/cgroup" / folder
        place.mkdir(parents=True)
        (place / "pids.max").write_text(f"{limit}\n")
        (place / "pids.current").write_text("7\n")
    found = list(limits_facts.pids_limits(tmp_path))
    assert [(p.limit, p.used) for p in found] == [(100, 7), (50, 7)]


def test_the_limits_are_those_of_the_process_that_asks() -> None:
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from eagle3_agent.preflight.memory import limits_facts\n"
        "found = limits_facts.look()\n"
        "print(found.files.soft, found.core.soft, found.threads > 0)\n"
    )
    root = str(Path(limits_facts.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["99", "0", "True"], done.stderr


def test_the_probe_on_this_machine() -> None:
    found = gather(host_probe.PROBE, profile()).get(host_probe.PROBE).limits
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.uid == os.getuid()
    assert found.files.soft == (None if soft == resource.RLIM_INFINITY else soft)
    assert found.threads >= 1
    assert found.cores >= 1
