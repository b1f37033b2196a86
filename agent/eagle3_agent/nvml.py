"""NVML -> ``Gpu`` values.  A GPU that cannot be read says why and leaves the others alone.

Used only in processes that may hang and be killed: an NVML call can wait in
the driver for ever.  ``nvml_health`` asks the rest, through the same ``Nvml``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import archive, cgroups, processes
from .protocol.values import Gpu, GpuProcess

T = TypeVar("T")

#: What no GPU of today or of the next years says; a figure beyond is a fault of the driver.
_MOST_BYTES = 1 << 46
_MOST_WATT = 10_000
_MOST_CELSIUS = 200


class NvmlUnavailable(Exception):
    """There is no list of GPUs; the text says why, and the way out where there is one."""


class Nvml:
    """An open NVML.  Raises NvmlUnavailable when it cannot be opened.

    ``before`` is told the name of each function (or /proc/PID) just before it is called, so that
    whoever waits can say which one ``hangs``.
    """

    def __init__(self, before: Callable[[str], None] | None = None) -> None:
        self.lib = _load()
        self._before = before or _nobody
        self._before("nvmlInit")
        try:
            self.lib.nvmlInit()
        except self.lib.NVMLError as error:
            raise NvmlUnavailable(_words(self.lib, error)) from None
        # what means "this GPU does not say"
        self._silent = {
            self.lib.NVML_ERROR_NOT_SUPPORTED,
            self.lib.NVML_ERROR_FUNCTION_NOT_FOUND,
            self.lib.NVML_ERROR_NO_PERMISSION,
            self.lib.NVML_ERROR_NO_DATA,
            self.lib.NVML_ERROR_NOT_FOUND,
            self.lib.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        # what concerns the GPU and not the question: no other question is worth asking
        self._gone = {
            self.lib.NVML_ERROR_UNINITIALIZED,
            self.lib.NVML_ERROR_DRIVER_NOT_LOADED,
            self.lib.NVML_ERROR_GPU_IS_LOST,
            self.lib.NVML_ERROR_RESET_REQUIRED,
            self.lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            self.lib.NVML_ERROR_GPU_NOT_FOUND,
        }
        self.driver = self._optional(self.lib.nvmlSystemGetDriverVersion) or ""
        cuda = self._optional(self.lib.nvmlSystemGetCudaDriverVersion)
        self.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""

    def close(self) -> None:
        self._optional(self.lib.nvmlShutdown)

    def count(self) -> int:
        """How many GPUs there are, at least one; raises NvmlUnavailable."""
        self._before("nvmlDeviceGetCount")
        try:
            count = int(self.lib.nvmlDeviceGetCount())
        except self.lib.NVMLError as error:
            raise NvmlUnavailable(_words(self.lib, error)) from None
        if count == 0:
            raise NvmlUnavailable("the NVIDIA driver sees no GPU on this host")
        return count

    def gpu(self, index: int) -> tuple[Gpu, tuple[str, ...]]:
        """One GPU, and what it answered that cannot be so: an error of one question, or garbage."""
        odd: list[str] = []
        known: dict[str, Any] = {}
        try:
            handle = self.handle(index)
            for name, ask in self._questions():
                try:
                    known.update(ask(handle) if name is None else {name: ask(handle)})
                except self.lib.NVMLError as error:
                    if self.gone(error):
                        raise
                    odd.append(f"{name or 'memory'}: {_words(self.lib, error)}")
        except self.lib.NVMLError as error:
            known["error"] = _words(self.lib, error)
        gpu = Gpu(index=index, **known)
        if odd and not (gpu.uuid or gpu.name or gpu.memory_total or gpu.error):
            return Gpu(index=index, error=odd[0].partition(": ")[2]), ()
        return believable(gpu, odd), tuple(odd)

    def handle(self, index: int) -> Any:
        """Raises NVMLError."""
        self._before("nvmlDeviceGetHandleByIndex")
        return self.lib.nvmlDeviceGetHandleByIndex(index)

    def _questions(self) -> list[tuple[str | None, Callable[[Any], Any]]]:
        """What is asked of a GPU, in this order; a None name stands for several fields."""
        lib = self.lib

        def ask(function: Callable[..., Any], *more: Any) -> Callable[[Any], Any]:
            return lambda handle: self.value(function, handle, *more)

        def watts(function: Callable[..., Any]) -> Callable[[Any], Any]:
            def read(handle: Any) -> float | None:
                value = self.value(function, handle)
                return None if value is None else value / 1000  # NVML says milliwatt

            return read

        return [
            ("uuid", lambda h: self.value(lib.nvmlDeviceGetUUID, h) or ""),
            ("name", lambda h: self.value(lib.nvmlDeviceGetName, h) or ""),
            (None, self.memory),
            ("utilization", self._utilization),
            ("temperature", ask(lib.nvmlDeviceGetTemperature, lib.NVML_TEMPERATURE_GPU)),
            ("power", watts(lib.nvmlDeviceGetPowerUsage)),
            ("power_limit", watts(lib.nvmlDeviceGetEnforcedPowerLimit)),
            ("processes", self.processes),
        ]

    def memory(self, handle: Any) -> dict[str, int | None]:
        """Bytes by memory v2.  v1 counts the driver's reserve as used, so it only gives a total."""
        lib = self.lib
        memory = self.value(lib.nvmlDeviceGetMemoryInfo, handle, lib.nvmlMemory_v2)
        if memory is not None:
            return {"memory_used": int(memory.used), "memory_total": int(memory.total)}
        memory = self.value(lib.nvmlDeviceGetMemoryInfo, handle)
        return {"memory_total": None if memory is None else int(memory.total)}

    def _utilization(self, handle: Any) -> int | None:
        rates = self.value(self.lib.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else int(rates.gpu)

    def processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Who holds memory, of computing and of drawing processes."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._running(kind, handle):
                held = process.usedGpuMemory
                known = found.get(process.pid)
                found[process.pid] = max(known or 0, held) if held is not None else known
        return tuple(self._describe(pid, held) for pid, held in sorted(found.items()))

    def _describe(self, pid: int, held: int | None) -> GpuProcess:
        self._before(f"/proc/{pid}")  # a process that is stuck in the kernel can hold up its reader
        return describe(pid, held)

    def _running(self, kind: str, handle: Any) -> Any:
        # by name and version: for a library without it pynvml's own name is no NVMLError
        for version in ("_v3", "_v2"):
            function = getattr(self.lib, f"nvmlDeviceGet{kind}RunningProcesses{version}")
            found = self.value(function, handle)
            if found is not None:
                return found
        return ()

    def value(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The call's answer, decoded; None where the GPU does not say; raises NVMLError."""
        self._before(function.__name__)
        try:
            value = function(*arguments)
        except UnicodeDecodeError:  # by pynvml, of a name that is garbage
            return None
        except self.lib.NVMLError as error:
            if error.value in self._silent:
                return None
            raise
        if isinstance(value, (bytes, str)):
            return processes.printable(_bytes(value))  # type: ignore[return-value]
        return value

    def gone(self, error: Any) -> bool:
        """Whether this NVMLError concerns the GPU itself and not the one question."""
        return error.value in self._gone

    def words(self, error: Any) -> str:
        """An NVMLError for a person."""
        return _words(self.lib, error)

    def _optional(self, function: Callable[..., T]) -> T | None:
        try:
            return self.value(function)
        except self.lib.NVMLError:
            return None


def hangs(call: str) -> str:
    """What to say of a GPU when this call, as ``before`` was told it, does not return."""
    if call.startswith("/proc/"):
        return f"reading {call} hangs: a process that holds it is stuck in the kernel"
    return f"an NVML call hangs in the driver ({call})"


def _nobody(function: str) -> None:
    """Nobody waits for this process call by call."""


def library_version() -> str:
    """The version of the NVML library, ``580.95.05``; empty where there is none.

    The one question that is answered when the kernel's module is of another version.
    """
    try:
        lib = _load()
        lib._LoadNvmlLibrary()
        text = processes.printable(_bytes(lib.nvmlSystemGetNVMLVersion()))
    except Exception:  # pynvml loads the library in its own ways, each with its own errors
        return ""
    # "13.580.95.05": the CUDA release comes first (nvmlSystemGetNVMLVersion's documentation)
    return text.partition(".")[2]


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")


def believable(gpu: Gpu, odd: list[str]) -> Gpu:
    """The GPU without figures that no GPU has: they become unknown, and ``odd`` names them."""
    limits = {
        "memory_total": (1, _MOST_BYTES),
        "memory_used": (0, gpu.memory_total or _MOST_BYTES),
        "utilization": (0, 100),
        "temperature": (-50, _MOST_CELSIUS),
        "power": (0, _MOST_WATT),
        "power_limit": (0, _MOST_WATT),
    }
    known = {name: getattr(gpu, name) for name in Gpu.__dataclass_fields__}
    for name, (least, most) in limits.items():
        value = known[name]
        if value is not None and not least <= value <= most:
            odd.append(f"{name} {value:g}")
            known[name] = None
    if gpu.memory_total is not None and known["memory_total"] is None:
        known["memory_used"] = None  # of the same answer
    return Gpu(**known)


def describe(pid: int, held: int | None) -> GpuProcess:
    """A process that holds GPU memory; names stay empty for one of another pid namespace."""
    if not processes.in_first_namespace() and not processes.maps(pid, b"libcuda"):
        # a container: the driver's pid may be somebody else's here, so nobody is named
        return GpuProcess(pid=pid, user="", command="", bytes=held)
    who = processes.identity(pid)
    place = cgroups.place(pid)
    return GpuProcess(
        pid=pid,
        user=processes.user(pid),
        command=processes.command(pid),
        bytes=held,
        started=processes.started(pid),
        start_time=who.start_time if who else None,
        unit=place.unit,
        container=place.container,
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
        "(libnvidia-ml.so.1 is not there, or does not load)",
        lib.NVML_ERROR_DRIVER_NOT_LOADED: "no NVIDIA driver on this host is loaded "
        "(its library is there, its kernel module is not)",
        lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver/library version mismatch: "
        "reboot or reload the nvidia kernel modules (the driver was upgraded under them)",
        lib.NVML_ERROR_GPU_IS_LOST: "GPU is lost: it fell off the bus or must be reset "
        "(look for Xid in the kernel log)",
        lib.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset before it can be used again",
        lib.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver",
        lib.NVML_ERROR_UNKNOWN: "NVML says Unknown Error (in a container: its access to the GPU "
        "devices was lost, start it again)",
    }
    text = known.get(error.value)
    return text if text else processes.printable(f"NVML: {error}".encode())
