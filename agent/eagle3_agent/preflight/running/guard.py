"""Whom no action may end, whoever asks: the host, the agent, runs that go on, other people's."""

from __future__ import annotations

import os
from collections.abc import Iterable

from eagle3_agent import cgroups, processes
from eagle3_agent.cgroups import Place
from eagle3_agent.processes import Process

from .of_runs import Census

#: PF_KTHREAD of the kernel's sched.h, in field 9 of proc(5)'s stat.
_KERNEL_THREAD = 0x00200000


def spared(pids: Iterable[int]) -> dict[int, str]:
    """Pid -> why it must not, or cannot, be ended by this agent; those that may are left out."""
    census = Census()
    found = {pid: why_not(pid, census) for pid in pids}
    return {pid: why for pid, why in found.items() if why}


def why_not(pid: int, census: Census) -> str:
    """Empty when the process may be ended: it is the user's to agree then."""
    refused = never(pid, census) or of_another(pid)
    return refused or of_elsewhere(cgroups.place(pid), cgroups.place(os.getpid()))


def never(pid: int, census: Census) -> str:
    """Why no action may end it, by a signal or with its unit: host, agent, runs that go on."""
    process = census.table.get(pid)
    if process is None:
        return "it is gone"
    if pid in census.own:
        return "the agent itself, or what it runs under"
    refused = of_host(process)
    if refused:
        return refused
    if census.supervises(process):
        return "it guards a run that goes on: abort the run instead"
    run = census.mark(process).run
    if run and census.guarded(process, run):
        return f"it is of run {os.path.basename(run)}, which goes on: abort the run instead"
    return ""


def of_host(process: Process) -> str:
    """Pid 1 and the kernel's own threads."""
    if process.pid <= 1:
        return "the first process of this host"
    return "a thread of the kernel" if _is_kernel_thread(process.pid) else ""


def of_another(pid: int) -> str:
    """What this agent's user may not signal; root may signal all."""
    mine = os.geteuid()
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/status", "rb") as file:
            ids = [line.split()[1:3] for line in file if line.startswith(b"Uid:")]
    except OSError:
        return "it is gone"
    if mine == 0 or (ids and str(mine).encode() == ids[0][0]):
        return ""
    return f"it is of user {processes.user(pid) or uid}, and the agent runs as user {mine}"


def of_elsewhere(there: Place, here: Place) -> str:
    """What lives in a container or batch job that is not the agent's own; pure.

    What started it ends it, and starts it again when it is ended from outside.
    """
    if there.container and there.container != here.container:
        return f"it lives in container {there.container}: stop that"
    if there.job and there.job != here.job:
        return f"it lives in job {there.job}: cancel that"
    return ""


def _is_kernel_thread(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return len(fields) > 6 and bool(int(fields[6]) & _KERNEL_THREAD)
