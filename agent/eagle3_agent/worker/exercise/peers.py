"""Copies between devices: whether they are direct, how fast, and whether the bytes arrive.

Behind some IOMMU or PCIe ACS settings direct copies are quick and wrong, so all of them are
compared.
"""

from __future__ import annotations

import statistics
from typing import Any

from . import device
from .report import Asked, Report

_BYTES = 256 << 20
_ROUNDS = 5

#: With more devices than this, only some pairs are tried.
_ALL_PAIRS = 4


def perform(asked: Asked, report: Report) -> None:
    """``device`` and ``count``; optional ``bytes``.  A pair is told before it is tried."""
    import torch

    count = int(asked["count"])
    report.tell(phase="open the devices", torch=str(torch.__version__), pairs=[])
    device.require(asked["device"], count)
    places = [device.at(asked["device"], i) for i in range(count)]
    report.tell(access=_access(places))
    words = int(asked.get("bytes", _BYTES)) // 8
    made: list[dict[str, Any]] = []
    for source, target in pairs(count):
        report.tell(phase=f"copy from {source} to {target}")
        made.append({"source": source, "target": target, **_copy(places, source, target, words)})
        report.tell(pairs=made)


def pairs(count: int) -> list[tuple[int, int]]:
    """Every ordered pair of up to 4; of more, the neighbours on a ring and those half a ring away.

    Half a ring is across sockets where GPUs are numbered by PCI bus.
    """
    if count <= _ALL_PAIRS:
        return [(i, j) for i in range(count) for j in range(count) if i != j]
    found: dict[tuple[int, int], None] = {}
    for i in range(count):
        for j in ((i + 1) % count, (i - 1) % count, (i + count // 2) % count):
            found.setdefault((i, j))
    return list(found)


def _access(places: list[Any]) -> list[list[bool]]:
    """``[i][j]``: device i reaches j's memory without the host; false on the diagonal."""
    import torch

    if places[0].type != "cuda":
        return [[False] * len(places) for _ in places]
    return [
        [i != j and bool(torch.cuda.can_device_access_peer(i, j)) for j in range(len(places))]
        for i in range(len(places))
    ]


def _copy(places: list[Any], source: int, target: int, words: int) -> dict[str, Any]:
    """Bytes a second of the median round, and the 64-bit words that arrived wrong."""
    import torch

    sent = torch.arange(words, device=places[source]) * 0x9E3779B97F4A7C1 + source
    got = torch.zeros(words, device=places[target], dtype=torch.int64)
    # made anew where it arrives: what is compared has not been copied
    expected = torch.arange(words, device=places[target]) * 0x9E3779B97F4A7C1 + source
    device.wait(places[target])
    device.wait(places[source])

    def act() -> Any:
        return got.copy_(sent, non_blocking=True)

    act()
    device.wait(places[source])
    device.wait(places[target])
    wrong = int((got != expected).sum())
    got.zero_()
    device.wait(places[target])
    rounds = [device.seconds(places[source], act, 1) for _ in range(_ROUNDS)]
    device.wait(places[target])
    wrong = max(wrong, int((got != expected).sum()))
    return {"bytes_per_second": words * 8 / statistics.median(rounds), "wrong_words": wrong}
