"""What this workstation kept of a host, for the commands that are asked to do without it."""

from __future__ import annotations

import time
from dataclasses import replace

from eagle3_console import formats
from eagle3_console.errors import error
from eagle3_console.historycache import HistoryCache, KeptRun
from eagle3_console.linkstate import Kept

from .terminal import Terminal


def history(target: str, terminal: Terminal) -> Kept:
    """The list of runs as it was last seen; says so on stderr.  Raises ConsoleError."""
    kept = HistoryCache(target).kept()
    if kept is None:
        raise error(
            f"Nothing is kept of {target}",
            "No history of this target was seen from here, or it cannot be read.",
            "Ask the host itself: leave out --offline.",
            "not-found",
        )
    _say(target, kept.at, terminal)
    return kept


def run(target: str, wanted: str, terminal: Terminal) -> KeptRun:
    """A run by number, id or ``last``, as it was last seen; says so on stderr.

    Raises ConsoleError for one that is not kept.
    """
    cache = HistoryCache(target)
    kept = cache.kept()
    known = {r.run: r for r in kept.runs} if kept else {}
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else None
    name = next((r.run for r in known.values() if r.number == number), wanted)
    if wanted == "last" and kept and kept.runs:
        name = kept.runs[-1].run
    found = cache.run(name if number is None or name != wanted else f"{number:04d}")
    if found is None:
        line = "" if name not in known else f" Its line is: it {known[name].state}."
        raise error(
            f"Run {wanted} of {target} is not kept here",
            f"Only runs that were opened or shown while there was a link are.{line}",
            f"See which runs are known: eagle3-console runs {target} --offline.",
            "not-found",
        )
    summary = known.get(found.detail.summary.run)
    if summary is not None and kept is not None and kept.at > found.seen:
        same = summary.created == found.detail.summary.created
        found = replace(found, detail=replace(found.detail, summary=summary)) if same else found
    _say(target, found.seen, terminal)
    return found


def _say(target: str, at: float, terminal: Terminal) -> None:
    now = time.time()
    words = f"history of {formats.moment(at, now)}, {formats.ago(now - at)}"
    terminal.say(f"{target}: offline, {words}", "amber")
