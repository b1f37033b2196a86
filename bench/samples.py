"""Made-up bytes of the kinds that runs write: log lines and event lines; the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_agent.protocol import encode
from eagle3_agent.protocol.events import Event, Load, Plan, Progress, Stage, Wrote

_LOG = (
    "INFO 11-30 09:{m:02d}:{s:02d} [loader.py:120] Loading weights took {n} ms on rank {r}",
    "(Worker_TP{r} pid={n}) WARNING 11-30 09:{m:02d}:{s:02d} [config.py:88] "
    "cudagraph size {n} is larger than the batch",
    "{n}/100000 samples, {s}.{m:02d} it/s, layers 2 30 58 60, sequence {n} of 2048 tokens",
    "DEBUG 11-30 09:{m:02d}:{s:02d} [scheduler.py:44] waiting={m} running={r} swapped=0",
    "",
)


def log_lines(count: int) -> Iterator[bytes]:
    """``count`` lines as vLLM's loggers write them, without their newline."""
    for n in range(count):
        line = _LOG[n % len(_LOG)].format(n=n, m=n // 60 % 60, s=n % 60, r=n % 8)
        yield line.encode("ascii")


def log_bytes(size: int) -> bytes:
    """Exactly ``size`` bytes of log."""
    block = b"\n".join(log_lines(20_000)) + b"\n"
    return (block * (size // len(block) + 1))[:size]


def events(count: int) -> Iterator[Event]:
    """A run's events, 9 at least: its beginning, Progress and Wrote in turn, its end."""
    t = 1_700_000_000.0
    yield Stage(t, "load", "start")
    yield Load(t + 1, 0, 64)
    yield Load(t + 2, 64, 64)
    yield Stage(t + 3, "load", "done")
    yield Plan(t + 4, count, count * 900, count * 900 * 4 * 7168 * 2)
    yield Stage(t + 5, "extract", "start")
    for n in range(count - 9):
        at = t + 6 + n / 4
        if n % 2:
            size = 900 * 4 * 7168 * 2
            yield Wrote(at, n, f"data_{n}.pt", 900, size, (900, 7168), 4, "bfloat16")
        else:
            yield Progress(at, n, count, 0, n * 900, n * 51_609_600, 3456.7, 30.0, 1234.5)
    yield Stage(t + count, "extract", "done")
    yield Stage(t + count, "done", "start")
    yield Stage(t + count, "done", "done")


def event_lines(count: int) -> list[bytes]:
    """``count`` lines of an ``events.jsonl``, each with its newline."""
    return [encode(event) for event in events(count)]
