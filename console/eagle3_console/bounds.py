"""Where the time of an extraction goes, and what bounds it, in words; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3_agent.protocol.values import Throughput

from . import formats

Part = Literal["prefill", "capture", "waiting", "other"]

#: From this share on, waiting for the disk is what a person should know first.
_WAITS = 0.15


@dataclass(frozen=True)
class Shares:
    """Parts, 0 to 1, of the time of the process that captures; together 1."""

    prefill: float
    """The model's forward."""
    capture: float
    waiting: float
    """For the disk: the buffer was full."""
    other: float
    """Scheduling, tokenising, feeding."""

    def items(self) -> tuple[tuple[Part, float], ...]:
        return (
            ("prefill", self.prefill),
            ("capture", self.capture),
            ("waiting", self.waiting),
            ("other", self.other),
        )


def shares(told: Throughput) -> Shares | None:
    """None before anything was measured."""
    parts = [max(0.0, part) for part in (told.prefill, told.capture, told.wait)]
    whole = max(told.seconds, sum(parts))
    if not 0 < whole < float("inf"):
        return None
    prefill, capture, waiting = (part / whole for part in parts)
    return Shares(prefill, capture, waiting, max(0.0, 1 - prefill - capture - waiting))


def bound(told: Throughput) -> Part | None:
    """What the run spends most of its time on; waiting, as soon as it is worth mending."""
    parts = shares(told)
    if parts is None:
        return None
    if parts.waiting >= _WAITS:
        return "waiting"
    return max(parts.items(), key=lambda item: item[1])[0]


def words(told: Throughput) -> str:
    """``bound by the disk: the model waited 38 % of the time``; empty before it can be said."""
    parts, most = shares(told), bound(told)
    if parts is None or most is None:
        return ""
    if most == "waiting":
        return f"bound by the disk: the model waited {formats.percent(100 * parts.waiting)}" + _TIME
    if most == "prefill":
        return f"bound by the model: {formats.percent(100 * parts.prefill)} of the time in it"
    if most == "capture":
        return f"bound by the capture: {formats.percent(100 * parts.capture)}" + _TIME
    return f"bound by what feeds the model: it stood idle {formats.percent(100 * parts.other)}" + (
        _TIME
    )


_TIME = " of the time"


def computed(told: Throughput) -> str:
    """``1 731 598 tokens in 214 steps``"""
    steps = f"{formats.count(told.steps)} step{'' if told.steps == 1 else 's'}"
    return f"{formats.count(told.tokens)} tokens in {steps}"


def write_busy(told: Throughput) -> float | None:
    """Share, 0 to 1, of the writer threads' time in which they wrote; None without threads."""
    room = told.seconds * told.threads
    return min(1.0, max(0.0, told.write / room)) if room > 0 else None


def copy_busy(told: Throughput) -> float | None:
    """Share, 0 to 1, of the time in which states travelled to the host."""
    return min(1.0, max(0.0, told.copy / told.seconds)) if told.seconds > 0 else None


def facts(told: Throughput) -> list[tuple[str, str]]:
    """(name, figure) of what is not in the shares, what matters first; the buffer's is its peak."""
    busy, copying = write_busy(told), copy_busy(told)
    threads = f"{formats.count(told.threads)} writer{'' if told.threads == 1 else 's'}"
    return [
        (threads, f"{_share(busy)} busy"),
        ("buffer", f"{formats.size(told.buffer_peak)} of {formats.size(told.buffer_limit)}"),
        ("steps", f"{_share(told.fill)} full" if told.steps else formats.UNKNOWN),
        ("padding", _share(told.padding) if told.steps else formats.UNKNOWN),
        ("copy", _share(copying)),
    ]


def model_rate(told: Throughput) -> float | None:
    """Tokens a second that the model computed, over the whole attempt."""
    return told.tokens / told.seconds if told.seconds > 0 and told.tokens else None


def _share(part: float | None) -> str:
    return formats.percent(None if part is None or part != part else 100 * part)
