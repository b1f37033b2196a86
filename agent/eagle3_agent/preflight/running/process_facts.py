"""Processes of earlier runs, vLLM of anyone, and who has GPUs open, by what they are.

A name says nothing: a run's process carries the run's mark, vLLM's have its compiled library in
their memory map, and who uses a GPU has the device there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from eagle3_agent import cgroups, processes
from eagle3_agent.preflight.actions.units import UnitFacts, look
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.processes import Process

from .guard import why_not
from .of_runs import Census, Mark, elsewhere

T = TypeVar("T")

_MOST = 64
_MAPS_LIMIT = 4 * 1024 * 1024
#: The compiled part of vLLM, whatever the process calls itself.
_VLLM_LIBRARY = b"/vllm/_"
_VLLM_TITLE = "VLLM::"
#: A GPU's own device, or the one of unified memory, which every CUDA context maps.
_GPU_DEVICE = re.compile(rb" /dev/nvidia(?:\d+|-uvm)\n")
#: Seconds that reading from a process in the kernel (D) may take: its memory may be locked.
_STUCK_WAIT = 0.3

Kind = Literal["run", "vllm", "gpu"]

_PROC = ["/proc", "proc"]

_UNREADABLE: tuple[Mark, Kind | None] = (Mark("", readable=False), None)


@dataclass(frozen=True)
class Seen:
    """One living process that a new run should know of."""

    pid: int
    start_time: int
    """Clock ticks since boot: with the pid, the process's identity."""
    kind: Kind
    """``run``: carries the mark of a run of this tool; ``vllm``: vLLM, of anyone; ``gpu``: neither,
    and has a GPU's device mapped."""
    state: str
    """One letter of proc(5)."""
    user: str
    command: str
    started: float | None = None
    run: str = ""
    """The run's folder, as the process names it."""
    guarded: bool = False
    """A living supervisor looks after it: the run goes on."""
    elsewhere: bool = False
    """Its run is kept in another state folder, so nothing here can say what became of it."""
    root: int = 0
    """The topmost of its ancestors that is listed, too, or itself."""
    unit: str = ""
    """As ``Action.unit`` names one."""
    container: str = ""
    """Empty as well when the agent itself lives in it; so is ``job``."""
    job: str = ""
    spared: str = ""
    """Why no action may end it; empty when one may."""


@dataclass(frozen=True)
class ProcessFacts:
    found: tuple[Seen, ...] = ()
    more: int = 0
    """Found and not listed."""
    hidden: int = 0
    """Processes whose environment and maps cannot be read: other users', or stuck."""
    units: tuple[UnitFacts, ...] = ()
    """The services among them."""
    only_own: bool = False
    """/proc shows this user's processes alone (its mount option hidepid)."""
    blind: str = ""
    """Why this home's run folders cannot be read, in words."""


def _collect(_: Ask) -> ProcessFacts:
    census = Census()
    found: list[Seen] = []
    hidden = 0
    for pid, process in sorted(census.table.items()):
        if pid in census.own or not process.running:
            continue
        mark, kind = _unless_stuck(process, lambda p: _examine(p, census), _UNREADABLE)
        hidden += not mark.readable
        if kind is not None:
            found.append(_describe(process, kind, mark.run, census))
    listed = _rooted(found[:_MOST], census)
    units = look(s.unit for s in listed if s.unit and not s.guarded)
    more = max(0, len(found) - _MOST)
    only_own = os.geteuid() != 0 and hides(_mounts())
    return ProcessFacts(tuple(listed), more, hidden, units, only_own, census.blind)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text("utf-8", errors="replace")
    except OSError:
        return ""


def hides(mounts: str) -> bool:
    """Whether /proc keeps other users' processes to itself, by the text of /proc/mounts; pure."""
    options = [line.split()[3] for line in mounts.splitlines() if line.split()[1:3] == _PROC]
    chosen = options[-1].split(",") if options else []  # the last mount is the one that is seen
    return any(o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off") for o in chosen)


def _examine(process: Process, census: Census) -> tuple[Mark, Kind | None]:
    mark = census.mark(process)
    if mark.run:
        return mark, "run"
    maps = _maps(process.pid)
    if _VLLM_LIBRARY in maps or _is_titled(process):
        return mark, "vllm"
    return mark, "gpu" if _GPU_DEVICE.search(maps) else None


def _unless_stuck(process: Process, ask: Callable[[Process], T], otherwise: T) -> T:
    """What ``ask`` gives; of one in the kernel (D) only if it gives it soon."""
    if process.state != "D":
        return ask(process)
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(ask(process)), daemon=True)
    thread.start()
    thread.join(_STUCK_WAIT)
    return answer[0] if answer else otherwise


def _maps(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return file.read(_MAPS_LIMIT)
    except OSError:
        return b""


def _is_titled(process: Process) -> bool:
    """By the title that vLLM gives its processes: all that other users' show of themselves."""
    titled = processes.command(process.pid).startswith(_VLLM_TITLE)
    return titled or process.name.startswith("VLLM")


def _describe(process: Process, kind: Kind, run: str, census: Census) -> Seen:
    pid = process.pid
    where, here = cgroups.place(pid), cgroups.place(os.getpid())
    return Seen(
        pid=pid,
        start_time=process.identity.start_time,
        kind=kind,
        state=process.state,
        user=processes.user(pid),
        command=_unless_stuck(process, lambda p: processes.command(p.pid), process.name),
        started=processes.started(pid),
        run=run,
        guarded=bool(run) and census.guarded(process, run),
        elsewhere=bool(run) and elsewhere(run),
        unit=where.unit,
        container=where.container if where.container != here.container else "",
        job=where.job if where.job != here.job else "",
        spared=_unless_stuck(process, lambda p: why_not(p.pid, census), "it cannot be read"),
    )


def _rooted(found: list[Seen], census: Census) -> list[Seen]:
    known = {s.pid for s in found}
    return [replace(s, root=_topmost(s.pid, known, census)) for s in found]


def _topmost(pid: int, known: set[int], census: Census) -> int:
    """The last of ``known`` on the way up."""
    top = pid
    seen = {pid}
    process = census.table.get(pid)
    while process is not None and process.parent > 1 and process.parent not in seen:
        seen.add(process.parent)
        top = process.parent if process.parent in known else top
        process = census.table.get(process.parent)
    return top


PROBE = Probe("processes", ProcessFacts, _collect, timeout=8.0)
