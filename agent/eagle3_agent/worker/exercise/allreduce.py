"""One rank of a real all-reduce; its values are checked exactly, its bandwidth is measured.

Element i of rank r is ``(r + 1) * (i mod 251)``, so the sum over n ranks is
``n (n + 1) / 2 * (i mod 251)``: whole numbers, exact in float32 whatever the order of the sum.

Bandwidths as nccl-tests defines them (doc/PERFORMANCE.md): algorithm bandwidth is bytes over time,
bus bandwidth is that times ``2 (n - 1) / n``, which compares with a link's whatever n is.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Any

from . import device
from .report import Asked, Report

#: Bytes: one that latency bounds, one that the links bound.
_SIZES = (1 << 20, 256 << 20)
_WARM, _ROUNDS = 3, 9
_MODULUS = 251


def perform(asked: Asked, report: Report) -> None:
    """``device``, ``rank``, ``ranks``, ``store`` (a file), ``seconds``; optional ``sizes``."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(asked["rank"]), int(asked["ranks"])
    kind: device.Kind = asked["device"]
    report.tell(phase="open the device", torch=str(torch.__version__))
    device.require(kind, ranks)
    where = device.at(kind, rank)
    if kind == "cuda":
        torch.cuda.set_device(where)
        report.tell(nccl=".".join(map(str, torch.cuda.nccl.version())))
    torch.zeros(1, device=where)
    report.tell(phase="meet the other ranks")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.FileStore(asked["store"], ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=float(asked["seconds"])),
    )
    told: list[dict[str, Any]] = []
    for size in asked.get("sizes", _SIZES):
        report.tell(phase=f"reduce {size} bytes")
        told.append(_reduce(where, int(size), rank, ranks))
        report.tell(rounds=told)
    report.tell(phase="leave")
    dist.destroy_process_group()


def _reduce(where: Any, size: int, rank: int, ranks: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    pattern = (torch.arange(size // 4, device=where) % _MODULUS).float()
    values = pattern * (rank + 1)
    dist.all_reduce(values)
    device.wait(where)
    wrong = int((values != pattern * (ranks * (ranks + 1) // 2)).sum())
    values.zero_()  # or the sums would grow without end
    seconds = []
    for _ in range(_WARM + _ROUNDS):
        dist.barrier()
        device.wait(where)
        began = time.perf_counter()
        dist.all_reduce(values)
        device.wait(where)
        seconds.append(time.perf_counter() - began)
    return {"bytes": size, "seconds": statistics.median(seconds[_WARM:]), "wrong": wrong}
