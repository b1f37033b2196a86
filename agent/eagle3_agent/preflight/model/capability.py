"""The compute capability of the run's GPUs: what decides which dtypes and kernels they have."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent import nvml
from eagle3_agent.preflight.check import Ask, Facts, Probe
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol.values import Profile


@dataclass(frozen=True)
class Device:
    index: int
    name: str
    capability: int
    """90 is 9.0."""

    def words(self) -> str:
        return (
            f"GPU {self.index} ({show(self.name, 60)}) has compute capability "
            f"{self.capability // 10}.{self.capability % 10}"
        )


@dataclass(frozen=True)
class CapabilityFacts:
    devices: tuple[Device, ...] = ()
    """Those that told; a GPU that is lost or silent is not among them."""


def _collect(ask: Ask) -> CapabilityFacts:
    try:
        opened = nvml.Nvml()
        count = opened.count()
    except nvml.NvmlUnavailable:
        return CapabilityFacts()
    found = (_device(opened, index) for index in range(count))
    return CapabilityFacts(tuple(d for d in found if d is not None))


def _device(opened: nvml.Nvml, index: int) -> Device | None:
    try:
        handle = opened.handle(index)
        told = opened.value(opened.lib.nvmlDeviceGetCudaComputeCapability, handle)
        name = opened.value(opened.lib.nvmlDeviceGetName, handle) or ""
        return None if told is None else Device(index, name, 10 * int(told[0]) + int(told[1]))
    except opened.lib.NVMLError:
        return None


def least(facts: Facts, profile: Profile) -> Device | None:
    """The run's GPU that can do least; None when none of them told."""
    told, seen = facts.maybe(PROBE), facts.maybe(gpu_facts.PROBE)
    if told is None:
        return None
    devices = {d.index: d for d in told.devices}
    if seen is not None:
        gpus = gpu_facts.select(seen.visible, seen.sample.gpus, seen.health).gpus
        used = {g.index for g in gpus[: profile.model.tensor_parallel_size]}
        devices = {i: d for i, d in devices.items() if i in used}
    return min(devices.values(), key=lambda d: d.capability, default=None)


PROBE = Probe("capability", CapabilityFacts, _collect, timeout=8.0)
