"""Resident memory of this process while something goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

_PERIOD = 0.25


class Watched:
    """Samples VmRSS within its block; ``found`` sums it up afterwards, in bytes."""

    def __init__(self, wanted: bool) -> None:
        self.found: dict[str, int] = {}
        self._wanted = wanted
        self._seen: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="resident", daemon=True)

    def __enter__(self) -> Watched:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._wanted:
            return
        self._stop.set()
        self._thread.join()
        seen = self._seen
        self.found = {
            "start": seen[0],
            "after a tenth": seen[len(seen) // 10],
            "end": seen[-1],
            "most": max(seen),
        }

    def _work(self) -> None:
        while True:
            self._seen.append(resident())
            if self._stop.wait(_PERIOD):
                return


def resident() -> int:
    """Bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")
