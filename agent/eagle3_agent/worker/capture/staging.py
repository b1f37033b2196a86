"""States on their way from the model to the host: one step's buffer, and the arena behind it.

The buffer lies on the device and holds the states of one step in the layout that a file
wants, so a request's rows leave it by plain copies.  The arena is one piece of host
memory, shared with the writers' processes and cut into regions: one for each request from
its first row until its file is written.  When it is full, the step waits.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_agent.worker.writing.shared import Shared

from .device import Device, Mark
from .refusals import CaptureRefused

Layout = Literal["LSH", "SLH"]
"""How the states of a request lie: layers, tokens, hidden, or tokens, layers, hidden."""

#: Regions begin at multiples of this: any dtype's width, and a line of the processor's cache.
_ALIGN = 64


class StepBuffer:
    """The states of one step on the device, [L, T, H] or [T, L, H]; T is the step's budget.

    Layers are written while the model runs, then copied out on the side stream; the next
    step's first write waits for that copy, on the device.
    """

    def __init__(
        self, device: Device, where: Any, dtype: Any, shape: tuple[int, int, int], layout: Layout
    ) -> None:
        import torch

        layers, tokens, hidden = shape
        sizes = (layers, tokens, hidden) if layout == "LSH" else (tokens, layers, hidden)
        self._device = device
        self._layout = layout
        self._data = torch.empty(sizes, dtype=dtype, device=where)
        self._copied: Mark | None = None
        self.tokens, self.hidden = tokens, hidden

    @property
    def nbytes(self) -> int:
        return int(self._data.nbytes)

    def put(self, place: int, count: int, hidden: Any, residual: Any) -> None:
        """Write the first ``count`` rows of a state, or of the sum of its two summands."""
        import torch

        self._device.hold(self._copied)
        self._copied = None
        data = self._data[place] if self._layout == "LSH" else self._data[:, place]
        if residual is None:
            data[:count].copy_(hidden[:count])
        else:
            torch.add(hidden[:count], residual[:count], out=data[:count])

    def copy_out(self, start: int, count: int, region: Any, begin: int) -> None:
        """Queue the copy of rows to ``region`` (shaped as the layout says) at row ``begin``."""
        if self._layout == "SLH":
            rows = self._data[start : start + count]
            region[begin : begin + count].copy_(rows, non_blocking=True)
            return
        for layer, rows in enumerate(self._data[:, start : start + count]):
            region[layer, begin : begin + count].copy_(rows, non_blocking=True)

    def copied(self, mark: Mark) -> None:
        """Everything that was copied out is out once ``mark`` is done."""
        self._copied = mark


def _memory(device: Device, size: int) -> tuple[Shared | None, Any]:
    """Pinned host memory as a uint8 tensor.

    Where the kernel gives none to share, or the device pins none that is shared, it is not, and
    the capturing process writes by itself.
    """
    import torch

    with suppress(OSError):
        shared = Shared(size)
        memory = torch.frombuffer(shared.map, dtype=torch.uint8)
        try:
            device.pin(memory)
        except CaptureRefused:
            shared.close()
        else:
            return shared, memory
    memory = torch.empty(size, dtype=torch.uint8)
    device.pin(memory)
    return None, memory


@dataclass(eq=False)
class Region:
    """Host memory of one request."""

    data: Any
    """uint8 tensor of the size asked for."""
    start: int
    """Offset in the arena; -1 for memory of its own."""
    size: int
    """Bytes taken, alignment included."""
    leaving: bool = False
    """With a writer, who will release it."""


class Arena:
    """Regions of one piece of host memory; first fit, freed in any order; thread-safe."""

    def __init__(self, device: Device, size: int) -> None:
        """Takes and pins ``size`` bytes; raises CaptureRefused where they cannot be pinned."""
        self._device = device
        self.shared, self._memory = _memory(device, size)
        self._changed = threading.Condition()
        self._leaving = 0
        self.size = size
        self.limit(size)
        self.used = 0
        self.peak = 0

    def limit(self, size: int) -> None:
        """Use the first ``size`` bytes; no region may be in use."""
        self._free = [(0, min(size, self.size))]

    def take(self, size: int) -> Region:
        """A region of ``size`` bytes; waits for room.

        Waiting is for writers alone: when no region is with one, nothing would ever come
        free, and the request gets memory of its own beyond the bound.  So do requests that
        the arena could never hold, once everything that is with writers is written.
        """
        import torch

        rounded = -(-size // _ALIGN) * _ALIGN
        with self._changed:
            while True:
                start = self._fit(rounded)
                if start is not None or not self._leaving:
                    break
                self._changed.wait()
            self.used += rounded
            self.peak = max(self.peak, self.used)
        if start is None:
            return Region(torch.empty(size, dtype=torch.uint8), -1, rounded)
        return Region(self._memory[start : start + size], start, rounded)

    def offset(self, region: Region) -> int | None:
        """Where a region lies in ``shared``; None where no other process sees it."""
        return None if self.shared is None or region.start < 0 else region.start

    def leave(self, region: Region) -> None:
        """The region goes to a writer."""
        with self._changed:
            region.leaving = True
            self._leaving += 1

    def give_back(self, region: Region) -> None:
        """Free a region; from any thread, once."""
        with self._changed:
            self.used -= region.size
            self._leaving -= region.leaving
            if region.start >= 0:
                self._insert(region.start, region.size)
            self._changed.notify_all()

    def close(self) -> None:
        """Give the memory back; no region may be in use."""
        self._device.unpin(self._memory)
        if self.shared is not None:
            self.shared.close()

    def _fit(self, size: int) -> int | None:
        for place, (start, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[place]
                else:
                    self._free[place] = (start + size, room - size)
                return start
        return None

    def _insert(self, start: int, size: int) -> None:
        spans = sorted([*self._free, (start, size)])
        merged = [spans[0]]
        for begin, room in spans[1:]:
            last, length = merged[-1]
            if last + length == begin:
                merged[-1] = (last, length + room)
            else:
                merged.append((begin, room))
        self._free = merged
