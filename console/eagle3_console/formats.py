"""Numbers, sizes, times and rates as a person reads them; pure.

What is not known is ``-``, never 0.  A number of the same kind keeps its
width, so that columns stand still.
"""

from __future__ import annotations

import time

from eagle3_agent.protocol.values import Samples

UNKNOWN = "-"
GIB = 1024**3


def count(value: int | float | None) -> str:
    """``12 480``: digits in threes; absurd values say so in place of filling the screen."""
    if value is None or value != value:
        return UNKNOWN
    if abs(value) >= 1e15:
        return ">10^15" if value > 0 else "<-10^15"
    return f"{round(value):,}".replace(",", " ")


def samples(value: Samples, noun: str = "") -> str:
    """``412 / 1 000 samples``, with what was skipped."""
    skipped = f", {count(value.skipped)} skipped" if value.skipped else ""
    return f"{count(value.done)} / {count(value.total)}{noun}{skipped}"


def gib(value: int | None) -> str:
    """``71.2``: bytes in GiB, without the unit."""
    if value is None:
        return UNKNOWN
    return f"{value / GIB:.1f}" if abs(value) < 1e18 else ">10^9"


def size(value: int | float | None) -> str:
    """``28.0 MiB``: bytes with the unit that leaves one to four digits."""
    if value is None:
        return UNKNOWN
    amount = float(min(max(value, -1e24), 1e24))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB" if abs(amount) < 1e5 else ">10^5 TiB"


def percent(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{min(max(value, 0), 999):.0f} %"


def rate(tokens_per_second: float | None) -> str:
    """``2 283 tok/s``; under ten one digit is kept."""
    if tokens_per_second is None:
        return f"{UNKNOWN} tok/s"
    if abs(tokens_per_second) < 10:
        return f"{tokens_per_second:.1f} tok/s"
    return f"{count(tokens_per_second)} tok/s"


def duration(seconds: float | None) -> str:
    """``2 s``, ``0:41`` from ten seconds on, ``18:02``, ``3:20:05``, ``2 d 04:10``."""
    if seconds is None or seconds != seconds:
        return UNKNOWN
    if abs(seconds) > 3650 * 86400:
        return ">10 years"
    whole = max(0, int(seconds))
    if whole < 10:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{second:02d}"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minute:02d}:{second:02d}"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02d}:{minute:02d}"


def ago(seconds: float | None) -> str:
    """``just now``, ``31 min ago``, ``3 h ago``, ``2 days ago``."""
    if seconds is None or seconds != seconds:
        return UNKNOWN
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 2 * 86400:
        return f"{int(seconds // 3600)} h ago"
    return f"{count(seconds // 86400)} days ago"


def _local(t: float | None) -> time.struct_time | None:
    if t is None:
        return None
    try:
        return time.localtime(t)
    except (OverflowError, ValueError, OSError):
        return None


def clock(t: float | None) -> str:
    """``14:02:11``: epoch seconds as the workstation's local time."""
    local = _local(t)
    return time.strftime("%H:%M:%S", local) if local else UNKNOWN


def clock_minutes(t: float | None) -> str:
    """``14:20``."""
    local = _local(t)
    return time.strftime("%H:%M", local) if local else UNKNOWN


def moment(t: float | None, now: float) -> str:
    """``13:31`` today, else ``Nov 28 13:31``."""
    local, today = _local(t), _local(now)
    if local is None:
        return UNKNOWN
    if today is not None and local[:3] == today[:3]:
        return time.strftime("%H:%M", local)
    return time.strftime("%b %d %H:%M", local)
