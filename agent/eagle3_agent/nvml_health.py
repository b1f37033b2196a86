"""NVML -> ``Health``: what the live view does not need and a run's first minute does.

Every question is optional: what a part, a driver or a permission does not answer stays None.
None is never taken for good or for bad by anyone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from . import nvml
from .nvml_facts import (
    COMPUTE_MODES,
    FABRICS,
    LEVELS,
    PEERS,
    REASONS,
    RECOVERIES,
    Clocks,
    Errors,
    Health,
    Links,
    Modes,
    Pair,
    Pcie,
    Slice,
)
from .protocol.values import Gpu

T = TypeVar("T")

#: Seconds for the questions about pairs of GPUs; 16 GPUs have 120 pairs.
_PAIRS_TIME = 0.5

#: More links than any part has (NVML_NVLINK_MAX_LINKS is 36 today): a larger figure is garbage.
_MOST_LINKS = 72


class _Asker:
    """Questions about one GPU: the failure of one is noted and costs nothing else.

    Raises NVMLError once the GPU itself is gone.
    """

    def __init__(self, opened: nvml.Nvml, odd: list[str]) -> None:
        self.nvml = opened
        self.lib = opened.lib
        self.odd = odd
        # of a question that makes no sense for this part or mode: no fault of the GPU
        self._unasked = {
            self.lib.NVML_ERROR_INVALID_ARGUMENT,
            self.lib.NVML_ERROR_DEPRECATED,
            self.lib.NVML_ERROR_NOT_READY,
            self.lib.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        }

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of ``lib.name``; None where it does not say, fails or is not in pynvml."""
        function = getattr(self.lib, name, None)
        if function is None:
            return None
        try:
            return self.nvml.value(function, *arguments)
        except self.lib.NVMLError as error:
            if self.nvml.gone(error):
                raise
            if error.value in self._unasked:
                return None
            self.odd.append(f"{name}: {self.nvml.words(error)}")
            return None

    def flag(self, name: str, handle: Any) -> bool | None:
        return self.truth(name, self.ask(name, handle))

    def truth(self, name: str, value: Any) -> bool | None:
        return None if value is None else bool(self.within(name, value, 0, 1))

    def within(self, name: str, value: T | None, least: Any, most: Any) -> T | None:
        """The value, or None with a note where it is beyond what can be."""
        if value is None or least <= value <= most:
            return value
        self.odd.append(f"{name} {value}")
        return None

    def word(self, name: str, words: dict[int, str], value: Any) -> str:
        if value is None:
            return ""
        if value not in words:
            self.odd.append(f"{name} {value}")
        return words.get(value, "")


def read(opened: nvml.Nvml, index: int, odd: tuple[str, ...] = ()) -> Health:
    """Everything about this GPU; ``odd`` is what ``Nvml.gpu`` noted.  Raises NVMLError."""
    noted = list(odd)
    asker = _Asker(opened, noted)
    handle = opened.handle(index)
    modes = _modes(asker, handle)
    found = Health(
        index=index,
        pci=_pci(asker, handle),
        modes=modes,
        slices=_slices(asker, handle) if modes.mig else (),
        errors=_errors(asker, handle),
        clocks=_clocks(asker, handle),
        pcie=_pcie(asker, handle),
        links=_links(asker, handle),
    )
    return replace(found, odd=tuple(dict.fromkeys(noted))[:16])


def _pci(asker: _Asker, handle: Any) -> str:
    seen = asker.ask("nvmlDeviceGetPciInfo_v3", handle)
    if seen is None:
        return ""
    return f"{seen.domain:04x}:{seen.bus:02x}:{seen.device:02x}"


def _modes(asker: _Asker, handle: Any) -> Modes:
    mig = asker.ask("nvmlDeviceGetMigMode", handle) or (None, None)
    ecc = asker.ask("nvmlDeviceGetEccMode", handle) or (None, None)
    compute = asker.ask("nvmlDeviceGetComputeMode", handle)
    return Modes(
        compute=asker.word("compute mode", COMPUTE_MODES, compute),
        persistence=asker.flag("nvmlDeviceGetPersistenceMode", handle),
        mig=asker.truth("MIG mode", mig[0]),
        mig_pending=asker.truth("pending MIG mode", mig[1]),
        ecc=asker.truth("ECC mode", ecc[0]),
        ecc_pending=asker.truth("pending ECC mode", ecc[1]),
    )


def _slices(asker: _Asker, handle: Any) -> tuple[Slice, ...]:
    count = asker.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    found = []
    for number in range(min(int(count), 64)):
        device = asker.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if device is None:
            continue
        try:
            memory = asker.nvml.memory(device)
            holders = asker.nvml.processes(device)
        except asker.lib.NVMLError as error:
            asker.odd.append(f"MIG slice {number}: {asker.nvml.words(error)}")
            memory, holders = {}, ()
        gpu = nvml.believable(
            Gpu(
                number,
                memory_used=memory.get("memory_used"),
                memory_total=memory.get("memory_total"),
            ),
            asker.odd,
        )
        found.append(
            Slice(
                uuid=asker.ask("nvmlDeviceGetUUID", device) or "",
                name=asker.ask("nvmlDeviceGetName", device) or "",
                memory_used=gpu.memory_used,
                memory_total=gpu.memory_total,
                processes=holders,
            )
        )
    return tuple(found)


def _errors(asker: _Asker, handle: Any) -> Errors:
    lib = asker.lib
    uncorrected = asker.ask(
        "nvmlDeviceGetTotalEccErrors",
        handle,
        lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        lib.NVML_VOLATILE_ECC,
    )
    rows = asker.ask("nvmlDeviceGetRemappedRows", handle) or (None, None, None, None)
    action = getattr(lib, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    return Errors(
        # a counter of 64 bits near its end has not counted, it was never written
        uncorrected=asker.within("uncorrected ECC errors", uncorrected, 0, 1 << 62),
        remapped=asker.within("remapped rows", rows[1], 0, 1 << 20),
        remap_pending=asker.truth("row remap pending", rows[2]),
        remap_failed=asker.truth("row remap failed", rows[3]),
        retired_pending=asker.flag("nvmlDeviceGetRetiredPagesPendingStatus", handle),
        recovery=asker.word("recovery action", RECOVERIES, _field(asker, handle, action)),
    )


def _field(asker: _Asker, handle: Any, number: int | None) -> int | None:
    """One field value, an unsigned number; None where the driver or the part has it not."""
    if number is None:
        return None
    values = asker.ask("nvmlDeviceGetFieldValues", handle, [number])
    if values is None or values[0].nvmlReturn != asker.lib.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _clocks(asker: _Asker, handle: Any) -> Clocks:
    lib = asker.lib
    bits = asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # the older name of the same, for drivers before R535
        bits = asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    limit = asker.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    slowdown = asker.ask(
        "nvmlDeviceGetTemperatureThreshold", handle, lib.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    return Clocks(
        reasons=None if bits is None else tuple(w for bit, w in REASONS.items() if bits & bit),
        slowdown=asker.within("slowdown temperature", slowdown, 1, 200),
        power_default=asker.within(
            "default power limit", None if limit is None else limit / 1000, 1, 10_000
        ),
    )


def _pcie(asker: _Asker, handle: Any) -> Pcie:
    def ask(what: str, most: int) -> int | None:
        return asker.within(f"PCIe {what}", asker.ask(f"nvmlDeviceGet{what}", handle), 1, most)

    return Pcie(
        generation=ask("CurrPcieLinkGeneration", 16),
        generation_max=ask("MaxPcieLinkGeneration", 16),
        width=ask("CurrPcieLinkWidth", 64),
        width_max=ask("MaxPcieLinkWidth", 64),
    )


def _links(asker: _Asker, handle: Any) -> Links:
    count = _field(asker, handle, getattr(asker.lib, "NVML_FI_DEV_NVLINK_LINK_COUNT", None))
    up, down, peers = 0, [], dict[str, int]()
    for link in range(asker.within("NVLink count", count, 0, _MOST_LINKS) or 0):
        state = asker.ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            continue
        if not state:
            down.append(link)
            continue
        up += 1
        peer = PEERS.get(asker.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link), "")
        if peer:
            peers[peer] = peers.get(peer, 0) + 1
    state, status, mask = _fabric(asker, handle)
    degraded = None if mask is None or not mask & 3 else mask & 3 == 1
    return Links(up, tuple(down), peers, state, status, degraded)


def _fabric(asker: _Asker, handle: Any) -> tuple[str, int, int | None]:
    """(state, status, health mask).  In nvml.h the state is one byte, in pynvml four."""
    lib = asker.lib
    shapes: tuple[tuple[str, str, Callable[[Any], int | None]], ...] = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t", lambda i: int(i.healthMask)),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", lambda i: None),
    )
    for name, shape, mask in shapes:
        if not hasattr(lib, shape):
            continue
        info = getattr(lib, shape)()
        if asker.ask(name, handle, ctypes.byref(info)) is not None:
            word = asker.word("fabric state", FABRICS, info.state & 0xFF)
            return word, int(info.status), mask(info)
    return "", 0, None


def pairs(opened: nvml.Nvml, indices: tuple[int, ...]) -> tuple[Pair, ...]:
    """How each of these GPUs reaches the others; those that the time is too short for are left out.

    Raises NVMLError.
    """
    asker = _Asker(opened, [])
    lib = opened.lib
    handles = {index: opened.handle(index) for index in indices}
    found: list[Pair] = []
    until = time.monotonic() + _PAIRS_TIME
    for place, one in enumerate(indices):
        for other in indices[place + 1 :]:
            if time.monotonic() > until:
                return tuple(found)
            both = handles[one], handles[other]
            level = asker.ask("nvmlDeviceGetTopologyCommonAncestor", *both)
            peer = asker.ask("nvmlDeviceGetP2PStatus", *both, lib.NVML_P2P_CAPS_INDEX_NVLINK)
            nvlink = None if peer is None else peer == lib.NVML_P2P_STATUS_OK
            found.append(Pair(one, other, LEVELS.get(level, ""), nvlink))
    return tuple(found)
