"""NVML -> ``Gpu`` values.  A GPU that cannot be read says why and leaves the others alone.

Used only in processes that may hang and be killed: an NVML call can wait in
the driver for ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import archive, processes
from .protocol.values import Gpu, GpuProcess

T = TypeVar("T")


class NvmlUnavailable(Exception):
    """There is no list of GPUs; the text says why, and the way out where there is one."""


class Nvml:
    """An open NVML.  Raises NvmlUnavailable when it cannot be opened."""

    def __init__(self) -> None:
        self._lib = _load()
        try:
            self._lib.nvmlInit()
        except self._lib.NVMLError as error:
            raise NvmlUnavailable(_words(self._lib, error)) from None
        # what means "this GPU does not say"; everything else means that it cannot be read
        self._silent = {
            self._lib.NVML_ERROR_NOT_SUPPORTED,
            self._lib.NVML_ERROR_FUNCTION_NOT_FOUND,
            self._lib.NVML_ERROR_NO_PERMISSION,
            self._lib.NVML_ERROR_NO_DATA,
            self._lib.NVML_ERROR_NOT_FOUND,
            self._lib.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self.driver = self._optional(self._lib.nvmlSystemGetDriverVersion) or ""
        cuda = self._optional(self._lib.nvmlSystemGetCudaDriverVersion)
        self.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""

    def close(self) -> None:
        self._optional(self._lib.nvmlShutdown)

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU by index; raises NvmlUnavailable when not even their number is known."""
        try:
            count = self._lib.nvmlDeviceGetCount()
        except self._lib.NVMLError as error:
            raise NvmlUnavailable(_words(self._lib, error)) from None
        if count == 0:
            raise NvmlUnavailable("the NVIDIA driver sees no GPU on this host")
        return tuple(self._gpu(index) for index in range(count))

    def _gpu(self, index: int) -> Gpu:
        known: dict[str, Any] = {}
        try:
            handle = self._lib.nvmlDeviceGetHandleByIndex(index)
            for name, ask in self._questions():
                known.update(ask(handle) if name is None else {name: ask(handle)})
        except self._lib.NVMLError as error:
            known["error"] = _words(self._lib, error)
        return Gpu(index=index, **known)

    def _questions(self) -> list[tuple[str | None, Callable[[Any], Any]]]:
        """What is asked of a GPU, in this order; a None name stands for several fields."""
        lib = self._lib

        def ask(function: Callable[..., Any], *more: Any) -> Callable[[Any], Any]:
            return lambda handle: self._value(function, handle, *more)

        def watts(function: Callable[..., Any]) -> Callable[[Any], Any]:
            def read(handle: Any) -> float | None:
                value = self._value(function, handle)
                return None if value is None else value / 1000  # NVML says milliwatt

            return read

        return [
            ("uuid", lambda h: self._value(lib.nvmlDeviceGetUUID, h) or ""),
            ("name", lambda h: self._value(lib.nvmlDeviceGetName, h) or ""),
            (None, self._memory),
            ("utilization", self._utilization),
            ("temperature", ask(lib.nvmlDeviceGetTemperature, lib.NVML_TEMPERATURE_GPU)),
            ("power", watts(lib.nvmlDeviceGetPowerUsage)),
            ("power_limit", watts(lib.nvmlDeviceGetEnforcedPowerLimit)),
            ("processes", self._processes),
        ]

    def _memory(self, handle: Any) -> dict[str, int | None]:
        """Bytes by memory v2.  v1 counts the driver's reserve as used, so it only gives a total."""
        lib = self._lib
        memory = self._value(lib.nvmlDeviceGetMemoryInfo, handle, lib.nvmlMemory_v2)
        if memory is not None:
            return {"memory_used": int(memory.used), "memory_total": int(memory.total)}
        memory = self._value(lib.nvmlDeviceGetMemoryInfo, handle)
        return {"memory_total": None if memory is None else int(memory.total)}

    def _utilization(self, handle: Any) -> int | None:
        rates = self._value(self._lib.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else int(rates.gpu)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        lib = self._lib
        found: dict[int, int | None] = {}
        for function in (
            lib.nvmlDeviceGetComputeRunningProcesses,
            lib.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in self._value(function, handle) or ():
                held = process.usedGpuMemory
                known = found.get(process.pid)
                found[process.pid] = max(known or 0, held) if held is not None else known
        return tuple(describe(pid, held) for pid, held in sorted(found.items()))

    def _value(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The call's answer, decoded; None where the GPU does not say; raises NVMLError."""
        try:
            value = function(*arguments)
        except self._lib.NVMLError as error:
            if error.value in self._silent:
                return None
            raise
        if isinstance(value, bytes):
            return processes.printable(value)  # type: ignore[return-value]
        return value

    def _optional(self, function: Callable[..., T]) -> T | None:
        try:
            return self._value(function)
        except self._lib.NVMLError:
            return None


def describe(pid: int, held: int | None) -> GpuProcess:
    """A process that holds GPU memory; names stay empty for one of another pid namespace."""
    if not processes.in_first_namespace() and not processes.maps(pid, b"libcuda"):
        # a container: the driver's pid may be somebody else's here, so nobody is named
        return GpuProcess(pid=pid, user="", command="", bytes=held)
    return GpuProcess(
        pid=pid,
        user=processes.user(pid),
        command=processes.command(pid),
        bytes=held,
        started=processes.started(pid),
    )


def _load() -> Any:
    """The pynvml module, the archive's own copy first."""
    vendor = os.fspath(archive.ROOT / "vendor")
    if os.path.isdir(vendor) and vendor not in sys.path:
        sys.path.insert(0, vendor)
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailable(
            "pynvml is missing from the agent's archive: ship the agent again "
            "(`eagle3-console agent upgrade TARGET`)"
        ) from None
    return pynvml


def _words(lib: Any, error: Any) -> str:
    """An NVML error for a person."""
    known = {
        lib.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this host "
        "(libnvidia-ml.so.1 is not there)",
        lib.NVML_ERROR_DRIVER_NOT_LOADED: "no NVIDIA driver on this host is loaded "
        "(its library is there, its kernel module is not)",
        lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver/library version mismatch: "
        "reboot or reload the nvidia kernel modules (the driver was upgraded under them)",
        lib.NVML_ERROR_GPU_IS_LOST: "GPU is lost: it fell off the bus or must be reset "
        "(look for Xid in the kernel log)",
        lib.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver",
        lib.NVML_ERROR_UNKNOWN: "NVML says Unknown Error (in a container: its access to the GPU "
        "devices was lost, start it again)",
    }
    text = known.get(error.value)
    return text if text else processes.printable(f"NVML: {error}".encode())
