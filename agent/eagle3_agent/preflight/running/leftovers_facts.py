"""Processes of earlier runs, and vLLM processes of anyone, found by what they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice

from eagle3_agent import paths, processes, runs
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.processes import Identity, Process
from eagle3_agent.protocol.events import Spawned

_MOST = 64
_MAPS_LIMIT = 4 * 1024 * 1024
#: The compiled part of vLLM, whatever the process calls itself.
_VLLM_LIBRARY = b"/vllm/_"
_VLLM_TITLE = "VLLM::"
_RUNS_LOOKED_AT = 50
#: A worker is spawned before anything else of note happens.
_EVENTS_LOOKED_AT = 50


@dataclass(frozen=True)
class Leftover:
    """One living process that a new run should know of."""

    pid: int
    start_time: int
    """Clock ticks since boot: with the pid, the process's identity."""
    kind: str
    """``run``: carries the mark of a run of this tool; ``vllm``: vLLM, of anyone."""
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


@dataclass(frozen=True)
class LeftoverFacts:
    found: tuple[Leftover, ...] = ()
    more: int = 0
    """Found and not listed."""
    hidden: int = 0
    """Other users' processes whose environment and maps cannot be read."""


def _collect(_: Ask) -> LeftoverFacts:
    table = processes.table()
    guardians = _living_supervisors(table)
    spawned = _spawned()
    own = _with_ancestors(os.getpid(), table)
    found: list[Leftover] = []
    hidden = 0
    for pid, process in sorted(table.items()):
        if pid in own or not process.running:
            continue
        readable, run = _run_mark(pid)
        run = run or _unmarked(process, spawned)
        hidden += not readable
        if run:
            found.append(_describe(process, "run", run, _guarded(process, run, guardians, table)))
        elif _is_vllm(process):
            found.append(_describe(process, "vllm", "", guarded=False))
    return LeftoverFacts(tuple(found[:_MOST]), max(0, len(found) - _MOST), hidden)


def _run_mark(pid: int) -> tuple[bool, str]:
    """(whether it could be read, the run folder that it carries or "")."""
    mark = os.fsencode(processes.RUN_VARIABLE) + b"="
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(_MAPS_LIMIT)
    except PermissionError:
        return False, ""
    except OSError:
        return True, ""
    for entry in data.split(b"\0"):
        if entry.startswith(mark):
            return True, os.fsdecode(entry[len(mark) :])
    return True, ""


def _spawned() -> dict[int, tuple[float, str]]:
    """Workers of this boot, living or not: pid -> (when the event was written, run folder)."""
    found: dict[int, tuple[float, str]] = {}
    boot = processes.boot_id()
    for folder in runs.list_folders()[-_RUNS_LOOKED_AT:]:
        guardian = folder.guardian()
        if guardian is None or guardian.boot_id != boot:
            continue
        for _, event in islice(folder.read_events(), _EVENTS_LOOKED_AT):
            if isinstance(event, Spawned):
                found[event.worker] = (event.t, str(folder.path))
    return found


def _unmarked(process: Process, spawned: dict[int, tuple[float, str]]) -> str:
    """The run of a process that wrote its title over its environment, as all of vLLM's do; or "".

    An event names a pid only.  The worker is the same process when it started before the event
    was written, by at most a few seconds; what it started has its session and its folder.
    """
    _, run = spawned.get(process.session, (0.0, ""))
    if run and processes.works_in(process.pid, run):
        return run
    told, run = spawned.get(process.pid, (0.0, ""))
    began = processes.started(process.pid) if run else None
    return run if began is not None and -5.0 < told - began < 30.0 else ""


def _living_supervisors(table: dict[int, Process]) -> dict[str, Identity]:
    """Run folder -> its supervisor, for the runs of this home that go on."""
    found = {}
    boot = processes.boot_id()
    for folder in runs.list_folders():
        guardian = folder.guardian()
        if guardian is None or guardian.boot_id != boot or folder.exit() is not None:
            continue
        who = Identity(guardian.pid, guardian.start_time)
        if guardian.pid in table and table[guardian.pid].identity == who:
            found[os.path.realpath(folder.path)] = who
    return found


def _guarded(
    process: Process, run: str, guardians: dict[str, Identity], table: dict[int, Process]
) -> bool:
    """Its run's supervisor lives; for a run of another home, whether a supervisor is above it."""
    if os.path.realpath(run) in guardians:
        return True
    if not _elsewhere(run):
        return False
    return any("supervise" in processes.command(p) for p in _with_ancestors(process.pid, table))


def _elsewhere(run: str) -> bool:
    return os.path.dirname(os.path.realpath(run)) != os.path.realpath(paths.runs_dir())


def _with_ancestors(pid: int, table: dict[int, Process]) -> set[int]:
    found: set[int] = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        process = table.get(pid)
        pid = process.parent if process else 0
    return found


def _is_vllm(process: Process) -> bool:
    """By its title, or by vLLM's compiled library in its memory map."""
    if processes.command(process.pid).startswith(_VLLM_TITLE) or process.name.startswith("VLLM"):
        return True
    try:
        with open(f"/proc/{process.pid}/maps", "rb") as file:
            return _VLLM_LIBRARY in file.read(_MAPS_LIMIT)
    except OSError:
        return False


def _describe(process: Process, kind: str, run: str, guarded: bool) -> Leftover:
    pid = process.pid
    return Leftover(
        pid=pid,
        start_time=process.identity.start_time,
        kind=kind,
        state=process.state,
        user=processes.user(pid),
        command=processes.command(pid),
        started=processes.started(pid),
        run=run,
        guarded=guarded,
        elsewhere=bool(run) and _elsewhere(run),
    )


PROBE = Probe("leftovers", LeftoverFacts, _collect, timeout=8.0)
