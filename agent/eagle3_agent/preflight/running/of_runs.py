"""Which processes of this host are of a run of this tool, and whether somebody looks after them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice

from eagle3_agent import paths, processes, runs
from eagle3_agent.processes import Identity, Process
from eagle3_agent.protocol.events import Spawned

_ENVIRON_LIMIT = 4 * 1024 * 1024
_RUNS_LOOKED_AT = 50
#: A worker is spawned before anything else of note happens.
_EVENTS_LOOKED_AT = 50


@dataclass(frozen=True)
class Mark:
    """The run that a process is of."""

    run: str = ""
    """The run's folder, as the process names it; empty when it is of none."""
    readable: bool = True
    """Its environment could be read."""


class Census:
    """The processes of one moment, and what the run folders of this home say of them."""

    def __init__(self) -> None:
        self.table = processes.table()
        self._boot = processes.boot_id()
        self.blind = ""
        """Why nothing is known of this home's runs, in words: their folder cannot be read."""
        self._folders = self._run_folders()
        self._guardians = self._living_supervisors()
        self._spawned = self._workers()
        self.own = self.with_ancestors(os.getpid())
        """This process and all above it."""

    def mark(self, process: Process) -> Mark:
        readable, run = _environment(process.pid)
        return Mark(run or self._unmarked(process), readable)

    def guarded(self, process: Process, run: str) -> bool:
        """Its run's supervisor lives; where no record can be read, whether one is above it."""
        if os.path.realpath(run) in self._guardians:
            return True
        above = self.with_ancestors(process.pid)
        unknown = self.blind or elsewhere(run)
        return bool(unknown) and any("supervise" in processes.command(p) for p in above)

    def supervises(self, process: Process) -> bool:
        """Whether it is the supervisor of a run that goes on."""
        if self.blind and "supervise" in processes.command(process.pid):
            return True
        return process.identity in self._guardians.values()

    def with_ancestors(self, pid: int) -> set[int]:
        """Up to, and without, pid 1."""
        found: set[int] = set()
        while pid > 1 and pid not in found:
            found.add(pid)
            process = self.table.get(pid)
            pid = process.parent if process else 0
        return found

    def _run_folders(self) -> list[runs.RunFolder]:
        try:
            return runs.list_folders()
        except OSError as error:
            self.blind = error.strerror or str(error)
            return []

    def _workers(self) -> dict[int, tuple[float, str]]:
        """Workers of this boot, living or not: pid -> (when the event was written, run folder)."""
        found: dict[int, tuple[float, str]] = {}
        for folder in self._folders[-_RUNS_LOOKED_AT:]:
            guardian = folder.guardian()
            if guardian is None or guardian.boot_id != self._boot:
                continue
            for _, event in islice(folder.read_events(), _EVENTS_LOOKED_AT):
                if isinstance(event, Spawned):
                    found[event.worker] = (event.t, str(folder.path))
        return found

    def _unmarked(self, process: Process) -> str:
        """The run of one that wrote its title over its environment, as all of vLLM's do; or "".

        An event names a pid only.  The worker is the same process when it started before the
        event was written, by at most a few seconds; what it started has its session and folder.
        """
        _, run = self._spawned.get(process.session, (0.0, ""))
        if run and processes.works_in(process.pid, run):
            return run
        told, run = self._spawned.get(process.pid, (0.0, ""))
        began = processes.started(process.pid) if run else None
        return run if began is not None and -5.0 < told - began < 30.0 else ""

    def _living_supervisors(self) -> dict[str, Identity]:
        """Run folder -> its supervisor, for the runs of this home that go on."""
        found = {}
        for folder in self._folders:
            guardian = folder.guardian()
            if guardian is None or guardian.boot_id != self._boot or folder.exit() is not None:
                continue
            who = Identity(guardian.pid, guardian.start_time)
            living = self.table.get(guardian.pid)
            if living is not None and living.identity == who:
                found[os.path.realpath(folder.path)] = who
        return found


def elsewhere(run: str) -> bool:
    """Whether a run is kept in another state folder, so that nothing here can say of it."""
    return os.path.dirname(os.path.realpath(run)) != os.path.realpath(paths.runs_dir())


def _environment(pid: int) -> tuple[bool, str]:
    """(whether it could be read, the run folder that it carries or "")."""
    mark = os.fsencode(processes.RUN_VARIABLE) + b"="
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(_ENVIRON_LIMIT)
    except PermissionError:
        return False, ""
    except OSError:
        return True, ""
    for entry in data.split(b"\0"):
        if entry.startswith(mark):
            return True, os.fsdecode(entry[len(mark) :])
    return True, ""
