"""Figures and host text as a verdict shows them; pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show(text: str, limit: int = 200) -> str:
    """Text from the host on one printable line: controls and bad UTF-8 as escapes, long cut."""
    try:
        legible = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair, from \ud800 in JSON
        legible = text
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in legible[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def size(count: float) -> str:
    """Bytes in binary units with one decimal: ``58.4 GiB``."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def number(count: int) -> str:
    """``5 003 411 456``: groups of three, as the sketches have it."""
    return f"{count:,}".replace(",", " ")


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def when(epoch: float | None) -> str:
    """Local minute of an epoch time, by the host's clock."""
    if epoch is None:
        return "an unknown time"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def ago(seconds: float) -> str:
    """``12 min``, of days, hours, minutes or seconds the largest that is not 0; whole ones."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def hours(count: float) -> str:
    """``4.2 h``, ``35 min``, or that it is less than a minute."""
    if count < 1 / 60:
        return "less than a minute"
    return f"{count * 60:.0f} min" if count < 1 else f"{count:.1f} h"


def listed(items: Sequence[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")
