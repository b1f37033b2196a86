"""The host at one moment: GPUs by NVML, CPU and memory by /proc; ``sample`` prints it as lines."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from . import archive
from .nvml import Nvml, NvmlUnavailable
from .nvml_patient import Patient
from .protocol import dumps
from .protocol.values import Gpu, HostSample

#: Seconds over which the first sample of a series measures the CPU.
_FIRST_SPAN = 0.1


class Sampler:
    """Takes samples; keeps NVML open and the CPU's counters of the sample before."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._patient: Patient | None = None
        self._call = ""
        self._cpu = _cpu_times()

    def sample(self) -> HostSample:
        """GPUs and host now.  May hang for as long as the NVIDIA driver does."""
        gpus: tuple[Gpu, ...] = ()
        problem = ""
        try:
            gpus = self._open().gpus()
        except NvmlUnavailable as error:
            problem = str(error)
            self._close()
        nvml = self._nvml
        sample = self.host(gpus, problem, nvml.driver if nvml else "", nvml.cuda if nvml else "")
        if gpus and all(gpu.error for gpu in gpus):
            self._close()  # a reloaded driver answers only those who open it anew
        return sample

    def _open(self) -> Patient:
        if self._patient is None:
            self._nvml = Nvml(self._name)
            self._patient = Patient(self._nvml, lambda: self._call)
        return self._patient

    def _name(self, call: str) -> None:
        self._call = call

    def _close(self) -> None:
        if self._patient is not None:
            self._patient.close()
        self._nvml = self._patient = None

    def host(
        self, gpus: tuple[Gpu, ...] = (), problem: str = "", driver: str = "", cuda: str = ""
    ) -> HostSample:
        """A sample with these GPUs; asks /proc alone, which does not hang."""
        before, self._cpu = self._cpu, _cpu_times()
        used, total = _memory()
        return HostSample(
            t=time.time(),
            gpus=gpus,
            gpu_problem=problem,
            driver=driver,
            cuda=cuda,
            cpu_count=os.cpu_count() or 0,
            cpu_percent=_busy_percent(before, self._cpu),
            memory_used=used,
            memory_total=total,
            load=_load(),
        )


def run(interval: float, count: int | None, parent: int) -> None:
    """Print a HostSample line every ``interval`` seconds until ``count``, or ``parent`` is gone.

    The parent says who it is: it may be gone before this process can ask.
    """
    sampler = Sampler()
    time.sleep(min(_FIRST_SPAN, interval))
    due = time.monotonic()
    taken = 0
    while os.getppid() == parent:
        # one write a line: several of these may append to one file
        os.write(1, dumps(sampler.sample()).encode("ascii") + b"\n")
        taken += 1
        if count is not None and taken >= count:
            return
        due = max(due + interval, time.monotonic() - interval)
        time.sleep(max(0.0, due - time.monotonic()))


def argv(interval: float) -> list[str]:
    """The command of a child that prints samples for this process, without end."""
    parent = str(os.getpid())
    return archive.command("sample", "--interval", str(interval), "--parent", parent)


def _cpu_times() -> tuple[int, int] | None:
    """(busy, all) ticks of all cores since boot."""
    try:
        first = Path("/proc/stat").read_bytes().split(b"\n", 1)[0].split()
    except OSError:
        return None
    if len(first) < 6:
        return None
    ticks = [int(t) for t in first[1:9]]  # guest time is in user time already
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _busy_percent(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return round(100.0 * max(0, after[0] - before[0]) / (after[1] - before[1]), 1)


def _memory() -> tuple[int | None, int | None]:
    """(used, total) bytes: what programs cannot get any more counts as used, caches do not."""
    try:
        text = Path("/proc/meminfo").read_text("ascii")
    except OSError:
        return None, None
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None, None
    total = int(found["MemTotal"]) * 1024
    return total - int(found["MemAvailable"]) * 1024, total


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
