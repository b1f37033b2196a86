"""What NVML says of a GPU beyond its ``Gpu``, and NVML's numbers as words; pure.

None, or an empty word, means that the part, the driver or a permission did not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .protocol.values import GpuProcess

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) -> what ``Clocks.reasons`` says.
REASONS = {
    0x001: "idle",
    0x002: "clock-setting",
    0x004: "power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal",
    0x040: "hw-thermal",
    0x080: "power-brake",
    0x100: "display-clock",
}

COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}

#: Field value 230, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h (R565 and later).
RECOVERIES = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}

FABRICS = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}

#: nvmlGpuTopologyLevel_t, by the names of `nvidia-smi topo -m`.
LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

#: nvmlIntNvLinkDeviceType_t: what is at the other end of a link.
PEERS = {0: "gpu", 1: "cpu", 2: "switch"}


@dataclass(frozen=True)
class Slice:
    """A MIG device: what CUDA sees of a GPU in MIG mode."""

    uuid: str
    name: str = ""
    memory_used: int | None = None
    memory_total: int | None = None
    """Bytes of the slice, not of the GPU."""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Modes:
    compute: str = ""
    """A word of COMPUTE_MODES; empty where NVML does not say."""
    persistence: bool | None = None
    mig: bool | None = None
    """None also for a part that has no MIG."""
    mig_pending: bool | None = None
    """The mode after the next reset."""
    ecc: bool | None = None
    ecc_pending: bool | None = None


@dataclass(frozen=True)
class Errors:
    uncorrected: int | None = None
    """ECC errors since the driver was loaded (volatile) that could not be corrected."""
    remapped: int | None = None
    """Rows remapped for uncorrectable errors, for good."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    """Pages to be retired at the next reset: parts before Ampere."""
    recovery: str = ""
    """A word of RECOVERIES: what the driver itself asks for."""


@dataclass(frozen=True)
class Clocks:
    reasons: tuple[str, ...] | None = None
    """Words of REASONS: why the clocks are not at their highest."""
    slowdown: int | None = None
    """Degrees Celsius from which the hardware slows down."""
    power_default: float | None = None
    """Watt: the limit that the part was made for."""


@dataclass(frozen=True)
class Pcie:
    generation: int | None = None
    """Of the link now; an idle GPU lowers it."""
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


@dataclass(frozen=True)
class Links:
    """NVLink and the fabric behind it."""

    up: int = 0
    down: tuple[int, ...] = ()
    peers: dict[str, int] = field(default_factory=dict)
    """``switch``, ``gpu``, ``cpu`` -> active links to one."""
    fabric: str = ""
    """A word of FABRICS; empty where NVML does not say."""
    fabric_status: int = 0
    """nvmlReturn_t of the registration, of use once it is completed."""
    fabric_degraded: bool | None = None


@dataclass(frozen=True)
class Health:
    """One GPU beyond its ``Gpu``."""

    index: int
    pci: str = ""
    """``0000:3b:00``: domain, bus and device, as the kernel log names it."""
    modes: Modes = Modes()
    slices: tuple[Slice, ...] = ()
    errors: Errors = Errors()
    clocks: Clocks = Clocks()
    pcie: Pcie = Pcie()
    links: Links = Links()
    odd: tuple[str, ...] = ()
    """Questions that were answered with an error or with what cannot be so."""


@dataclass(frozen=True)
class Pair:
    """How two GPUs reach each other."""

    one: int
    other: int
    level: str = ""
    """A word of LEVELS: the nearest that both hang from."""
    nvlink: bool | None = None
    """Whether peers can use NVLink between them, through a switch or not."""
