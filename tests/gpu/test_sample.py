"""What ``sample`` says of hosts that the NVML double pretends to be, through the real pynvml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from eagle3_agent import cgroups, nvml, processes
from eagle3_agent.nvml_patient import Patient
from eagle3_agent.protocol import from_json
from eagle3_agent.protocol.values import Gpu, HostSample
from support import nvml_double
from support.daemon import AGENT, eventually
from support.nvml_double import RESERVE, TOTAL, environment

MIB = 1024 * 1024


def sample(env: dict[str, str]) -> HostSample:
    """One sample of a child process with this environment."""
    argv = [sys.executable, "-E", "-s", str(AGENT), "sample", "--interval", "0.1", "--count", "1"]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return from_json(HostSample, json.loads(done.stdout))


def test_eight_healthy_gpus(nvml_library: Path) -> None:
    seen = sample(environment(nvml_library))
    assert [g.index for g in seen.gpus] == list(range(8))
    assert seen.gpu_problem == ""
    assert (seen.driver, seen.cuda) == ("580.95.05", "13.0")
    assert len({g.uuid for g in seen.gpus}) == 8
    for gpu in seen.gpus:
        assert gpu.name == "SIMULATED RTX PRO 6000"
        assert (gpu.memory_used, gpu.memory_total) == (0, TOTAL)
        assert (gpu.utilization, gpu.temperature, gpu.power_limit) == (0, 31 + gpu.index, 600.0)
        assert gpu.processes == ()
        assert gpu.error == ""
    assert seen.cpu_count == os.cpu_count()
    assert seen.memory_total is not None
    assert seen.memory_used is not None
    assert 0 < seen.memory_used < seen.memory_total


def test_the_drivers_reserve_is_not_memory_in_use(nvml_library: Path) -> None:
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
        "print(n.nvmlDeviceGetMemoryInfo(h).used,"
        " n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used)"
    )
    env = {**os.environ, **environment(nvml_library)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout.split() == [str(RESERVE).encode(), b"0"]
    assert sample(environment(nvml_library)).gpus[0].memory_used == 0


def test_processes_that_hold_memory_are_named(nvml_library: Path) -> None:
    hostile = "evil\x1b[31m\n\u202eraw"
    child = subprocess.Popen([sys.executable, "-c", "input()", hostile], stdin=subprocess.PIPE)
    try:
        held = [(2, child.pid, 58390), (2, 2**22 + 7, 10)]
        gpu = sample(environment(nvml_library, processes=held, busy=True)).gpus[2]
        assert gpu.memory_used == 58400 * MIB
        assert gpu.utilization == 89
        mine, gone = gpu.processes
        assert (mine.pid, mine.bytes) == (child.pid, 58390 * MIB)
        assert mine.user
        assert "input()" in mine.command
        assert mine.command.isprintable()
        assert mine.started is not None
        assert (gone.user, gone.command, gone.started) == ("", "", None)
    finally:
        child.communicate()


def test_a_lost_gpu_does_not_hide_the_others(nvml_library: Path) -> None:
    seen = sample(environment(nvml_library, "lost"))
    assert seen.gpu_problem == ""
    assert [g.index for g in seen.gpus if g.error] == [3]
    lost = seen.gpus[3]
    assert "lost" in lost.error
    assert lost.memory_used is None
    assert all(g.memory_total == TOTAL for g in seen.gpus if not g.error)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [("not-loaded", "no NVIDIA driver"), ("mismatch", "driver/library version mismatch: reboot")],
)
def test_no_gpus_is_said_in_words(
    nvml_library: Path, scenario: nvml_double.Scenario, words: str
) -> None:
    seen = sample(environment(nvml_library, scenario))
    assert words in seen.gpu_problem
    assert seen.gpus == ()
    assert seen.cpu_count > 0


def test_a_host_without_the_library() -> None:
    argv = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    if subprocess.run([sys.executable, "-c", argv], capture_output=True).returncode == 0:
        pytest.skip("not on this machine: a host without NVIDIA's library")
    assert "no NVIDIA driver on this host" in sample({}).gpu_problem


def test_no_gpu_at_all(nvml_library: Path) -> None:
    assert "sees no GPU" in sample(environment(nvml_library, gpus=0)).gpu_problem


def test_a_gpu_that_is_lost_while_it_is_watched_and_comes_back(nvml_library: Path) -> None:
    env = environment(nvml_library, name="changing.conf")
    argv = [sys.executable, "-E", "-s", str(AGENT), "sample", "--interval", "0.05"]
    child = subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = child.stdout

    def errors() -> list[int]:
        seen = from_json(HostSample, json.loads(lines.readline()))
        return [g.index for g in seen.gpus if g.error]

    try:
        assert errors() == []
        environment(nvml_library, "lost", name="changing.conf")
        eventually(lambda: errors() == [3])
        environment(nvml_library, name="changing.conf")
        eventually(lambda: errors() == [])
    finally:
        child.kill()
        child.wait()
        lines.close()


def test_the_sampler_leaves_with_its_parent(nvml_library: Path, tmp_path: Path) -> None:
    out = tmp_path / "lines"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=open('lines', 'wb'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [sys.executable, "-E", "-s", str(AGENT), "sample", "--interval", "0.05"]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=tmp_path,
        env={**os.environ, **environment(nvml_library)},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    eventually(lambda: out.exists() and out.stat().st_size > 0)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_holder_has_an_identity(nvml_library: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (seen,) = (
            sample(environment(nvml_library, processes=[(0, child.pid, 10)])).gpus[0].processes
        )
        who = processes.identity(child.pid)
        assert who is not None
        assert seen.start_time == who.start_time
        place = cgroups.place(child.pid)
        assert (seen.unit, seen.container) == (place.unit, place.container)
    finally:
        child.communicate()


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUUID"])
def test_a_gpu_that_hangs_is_named_and_the_others_are_read(
    nvml_library: Path, function: str
) -> None:
    seen = sample(environment(nvml_library, says=[f"stall=5:{function}"], gpus=6))
    assert seen.gpu_problem == ""
    assert [g.index for g in seen.gpus if g.error] == [5]
    assert "an NVML call hangs in the driver (nvmlDeviceGet" in seen.gpus[5].error
    assert all(g.memory_total == TOTAL for g in seen.gpus[:5])


# ------------------------------------------------------------------ patience, without NVML


class Opened:
    """Answers at once, but for one GPU whose answer waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[int] = []
        self.closed = False

    def count(self) -> int:
        return 3

    def gpu(self, index: int) -> tuple[Gpu, tuple[str, ...]]:
        self.asked.append(index)
        if index == 1:
            self.go.wait()
        return Gpu(index, name="read"), ()

    def close(self) -> None:
        self.closed = True


def test_a_gpu_is_asked_again_once_its_call_returns() -> None:
    opened = Opened()
    patient = Patient(cast(nvml.Nvml, opened), lambda: "nvmlX", limit=0.05, first=0.05)
    hangs = Gpu(1, error="an NVML call hangs in the driver (nvmlX)")
    for _ in range(2):
        first, second, third = patient.gpus()
        assert (first.name, second, third.name) == ("read", hangs, "read")
    assert opened.asked.count(1) == 1  # not asked again while it hangs
    opened.go.set()
    eventually(lambda: all(g.name == "read" for g in patient.gpus()))
    patient.close()
    assert opened.closed


def test_a_gpu_that_hangs_keeps_its_names() -> None:
    opened = Opened()
    opened.go.set()
    patient = Patient(cast(nvml.Nvml, opened), lambda: "nvmlX", limit=0.05, first=5.0)
    patient.gpus()
    opened.go.clear()
    assert patient.gpus()[1].name == patient.gpus()[1].name == "read"
    assert patient.gpus()[1].error
    opened.go.set()


def test_nvml_is_not_closed_under_a_call_that_hangs() -> None:
    opened = Opened()
    patient = Patient(cast(nvml.Nvml, opened), lambda: "nvmlX", limit=0.05, first=0.05)
    patient.gpus()
    patient.close()
    assert not opened.closed
    opened.go.set()
