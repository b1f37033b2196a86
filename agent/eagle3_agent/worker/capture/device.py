"""The few things that differ between a GPU and the CPU: streams, events, pinned memory.

One class for each, with the same methods; everything else in this package is one code.
The compute stream is whichever is current where the model runs.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, Protocol

from .refusals import CaptureRefused

#: Threads that touch fresh memory.
_TOUCHERS = 8


class Mark(Protocol):
    """A point in a stream's work."""

    def wait(self) -> None:
        """Block the calling thread until the work before this point is done."""
        ...

    def done(self) -> bool: ...

    def seconds_since(self, earlier: Any) -> float:
        """Device time between two marks that are both done."""
        ...


class Device(Protocol):
    """Where the model runs, seen from the copy of its states."""

    def mark(self) -> Mark:
        """A point in the stream that is current."""
        ...

    def side(self) -> Any:
        """A context in which work goes to the copy stream, behind what is queued so far."""
        ...

    def hold(self, mark: Mark | None) -> None:
        """Work queued from now on to the current stream waits for ``mark``."""
        ...

    def pin(self, memory: Any) -> None:
        """Let the device copy to host memory (a tensor) by itself; raises CaptureRefused."""
        ...

    def unpin(self, memory: Any) -> None: ...


def of(device: Any) -> Device:
    """``device``: a torch.device."""
    return Cuda(device) if device.type == "cuda" else Cpu()


class _Instant:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True

    def seconds_since(self, earlier: Any) -> float:
        return float(self._at - earlier._at)


class Cpu:
    """Work is done when its call returns."""

    def mark(self) -> Mark:
        return _Instant()

    def side(self) -> Any:
        return nullcontext()

    def hold(self, mark: Mark | None) -> None:
        pass

    def pin(self, memory: Any) -> None:
        pass

    def unpin(self, memory: Any) -> None:
        pass


class _Event:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()

    def done(self) -> bool:
        return bool(self.event.query())

    def seconds_since(self, earlier: Any) -> float:
        return float(earlier.event.elapsed_time(self.event)) / 1000.0


class Cuda:
    """One copy stream beside the model's own."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._registered: set[int] = set()

    def mark(self) -> Mark:
        # blocking: writers sleep while they wait, rather than spin on cores that launch kernels
        event = self._torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return _Event(event)

    def side(self) -> Any:
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        return self._torch.cuda.stream(self._stream)

    def hold(self, mark: Mark | None) -> None:
        if isinstance(mark, _Event):
            self._torch.cuda.current_stream(self._device).wait_event(mark.event)

    def pin(self, memory: Any) -> None:
        # torch's own pinned allocator would round the size up to a power of two, and shares nothing
        size = memory.nbytes
        _touch(memory)
        error = self._torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0)
        if error.value:
            self._forget_error()
            raise CaptureRefused(
                f"{size >> 20} MiB of host memory cannot be pinned ({error}): "
                "set output.buffer to less"
            )
        self._registered.add(memory.data_ptr())

    def _forget_error(self) -> None:
        """Have the runtime's last error raised here: a launch of the model would raise it."""
        with suppress(RuntimeError):
            self._torch.zeros(1, device=self._device)

    def unpin(self, memory: Any) -> None:
        if memory.data_ptr() in self._registered:
            self._registered.remove(memory.data_ptr())
            self._stream.synchronize()
            self._torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def _touch(memory: Any) -> None:
    """Have the kernel find the pages, by several threads at once: pinning does it with one."""
    size, start = memory.nbytes, memory.data_ptr()
    part = -(-size // _TOUCHERS)

    def touch(offset: int) -> None:
        ctypes.memset(start + offset, 0, min(part, size - offset))

    with ThreadPoolExecutor(_TOUCHERS) as pool:
        list(pool.map(touch, range(0, size, part)))
