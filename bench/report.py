"""A run of benchmarks as a table for people and as JSON for programs; nothing is measured here."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .measure import Comparison, LeftOut, Result, Spread

#: Raised only when a key changes its meaning.
FORMAT = 1


def machine() -> dict[str, Any]:
    """What the figures depend on, without the machine's name."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "textual": version("textual"),
        "asyncssh": version("asyncssh"),
    }


def document(results: Sequence[Result], seen: dict[str, Any], started: float) -> dict[str, Any]:
    """Everything that was measured, the single values included."""
    return {
        "format": FORMAT,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "machine": seen,
        "comparisons": [
            {**asdict(r), "ratio": asdict(r.ratio)} for r in results if isinstance(r, Comparison)
        ],
        "left_out": [asdict(r) for r in results if isinstance(r, LeftOut)],
    }


def write(path: Path, body: dict[str, Any]) -> None:
    """Whole or not at all; raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def figure(value: float) -> str:
    """Three digits, whatever the size."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def spread(of: Spread) -> str:
    return f"{figure(of.median)} ({figure(of.min)} … {figure(of.max)})"


def lines(result: Result) -> list[str]:
    """A comparison as three lines."""
    if isinstance(result, LeftOut):
        return [f"{result.name}: left out, {result.why}"]
    ours = spread(Spread.of(result.ours_values))
    peer = spread(Spread.of(result.peer_values))
    return [
        f"{result.name}: ratio {spread(result.ratio)}, {result.better} is better",
        f"    ours  {ours} {result.unit}: {result.ours}",
        f"    peer  {peer} {result.unit}: {result.peer}",
    ]


def heading(seen: dict[str, Any]) -> list[str]:
    words = ", ".join(f"{name} {value}" for name, value in seen.items())
    return [
        f"machine: {words}",
        "a ratio is ours / peer, formed within a round; shown: median (min … max)",
    ]
