"""Memory that keeps what is written, a matrix product that is exact, and how fast it is.

The factors hold -1, 0 and 1 with a period of 64 along both sides, so the product is a table of 64
numbers by ``(row - column) mod 64``: whole numbers of at most 6 bits times a power of two, exact
in bfloat16, and so are all sums on the way in float32.  The table is computed by Python's
integers, so the device is not compared with itself, and a single wrong bit shows.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from . import device
from .report import Asked, Report

_PERIOD = 64

#: 64-bit words written and compared at a time: 256 MiB.
_BLOCK = 32 << 20

#: Share of the free memory that is written.
_SHARE = 0.8

#: Seconds that the patterns may take; what was looked at by then is told.
_MEMORY_SECONDS = 10.0

#: The second is the first's complement: every bit is once 0 and once 1.
_PATTERNS = (0x5DEECE66D1234567, ~0x5DEECE66D1234567)

#: Seconds of products before any is timed, and while they are: clocks settle.
_WARM_SECONDS, _TIMED_SECONDS, _ROUNDS = 0.5, 1.0, 5


def perform(asked: Asked, report: Report) -> None:
    """``device``; optional ``size`` (a multiple of 64) and ``bytes`` bound the work."""
    import torch

    report.tell(phase="open the device", torch=str(torch.__version__))
    device.require(asked["device"], 1)
    where = device.at(asked["device"])
    torch.zeros(1, device=where)
    report.tell(phase="write and compare memory")
    bad, size = _memory(where, asked.get("bytes"))
    if where.type == "cuda":
        torch.cuda.empty_cache()
    report.tell(bad_words=bad, bytes=size, phase="multiply")
    _multiply(where, int(asked.get("size", 8192)), report)


def _memory(where: Any, most: int | None) -> tuple[int, int]:
    """(wrong 64-bit words, bytes looked at): all is written before any is read back."""
    import torch

    free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else most or 0
    size = int(free * _SHARE) if most is None else min(most, free)
    words = min(_BLOCK, max(1, size // 8 // 4))
    count = max(1, size // 8 // words - 3)  # the counter, what is expected, and where they differ
    base = torch.arange(words, device=where)
    expected = torch.empty_like(base)
    blocks = [torch.empty_like(base) for _ in range(count)]
    bad, looked_at = 0, 0
    until = time.monotonic() + _MEMORY_SECONDS
    for pattern in _PATTERNS:
        for place, block in enumerate(blocks):
            torch.bitwise_xor(base, _word(pattern, place), out=block)
        looked_at = 0
        for place, block in enumerate(blocks):
            torch.bitwise_xor(base, _word(pattern, place), out=expected)
            bad += int((block != expected).sum())
            looked_at += words * 8
            if time.monotonic() > until:
                return bad, looked_at
    return bad, looked_at


def _word(pattern: int, place: int) -> int:
    """Different in every block, so that two addresses of one place in memory show."""
    return pattern ^ (place << 40)


def table(left: list[int], right: list[int], depth: int) -> list[int]:
    """The product's elements by ``(row - column) mod 64``, for ``depth`` a multiple of 64."""
    times = depth // _PERIOD
    return [
        times * sum(left[(k + apart) % _PERIOD] * right[k] for k in range(_PERIOD))
        for apart in range(_PERIOD)
    ]


def factors() -> tuple[list[int], list[int]]:
    """One period of each factor, the same on every host."""
    state, found = 1, []
    for _ in range(2 * _PERIOD):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        found.append((state >> 33) % 3 - 1)
    return found[:_PERIOD], found[_PERIOD:]


def _multiply(where: Any, size: int, report: Report) -> None:
    import torch

    # else partial sums of a split product would be rounded to 16 bits between
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    dtype = _dtype(where)
    left, right = (torch.tensor(f, device=where, dtype=dtype) for f in factors())
    rows = torch.arange(size, device=where)
    # left[row + k], right[column + k]: the product depends on row - column alone
    turned = (rows[:, None] + rows[None, :]) % _PERIOD
    a, b = left[turned], right[turned]
    expected = torch.tensor(table(*factors(), size), device=where, dtype=dtype)
    expected = expected[(rows[:, None] - rows[None, :]) % _PERIOD]
    out = torch.empty_like(expected)

    def act() -> Any:
        return torch.mm(a, b, out=out)

    act()
    report.tell(
        wrong=int((out != expected).sum()), size=size, dtype=str(dtype).removeprefix("torch.")
    )
    report.tell(phase="time the product")
    once = max(device.seconds(where, act, 3) / 3, 1e-6)
    device.seconds(where, act, min(5000, 1 + int(_WARM_SECONDS / once)))
    times = min(2000, 1 + int(_TIMED_SECONDS / _ROUNDS / once))
    rounds = [device.seconds(where, act, times) / times for _ in range(_ROUNDS)]
    report.tell(
        tflops=2 * size**3 / statistics.median(rounds) / 1e12,
        slowest_tflops=2 * size**3 / max(rounds) / 1e12,
        wrong_late=int((out != expected).sum()),  # warm by now
    )


def _dtype(where: Any) -> Any:
    """bfloat16, or what the device knows instead of it."""
    import torch

    if where.type != "cuda":
        return torch.float32
    major, minor = torch.cuda.get_device_capability(where)
    if major >= 8:
        return torch.bfloat16
    return torch.float16 if (major, minor) >= (5, 3) else torch.float32
