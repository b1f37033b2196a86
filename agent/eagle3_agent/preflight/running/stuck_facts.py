"""Processes that no signal ends: waiting in the kernel (D), or dead and not reaped (Z).

Only stat, wchan and status of a process are read here: they answer while its memory is locked,
which a command line and a memory map do not.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from eagle3_agent import processes
from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.processes import Process

#: Seconds between looks at those in D: a wait for a disk that goes on is over by the next.
_LOOKS = (0.0, 0.25, 0.5)
_MOST = 32
#: Threads looked at in all.
_THREADS_MOST = 20_000


@dataclass(frozen=True)
class Waiting:
    """A thread that was in D, in the same wait, at every look."""

    pid: int
    start_time: int
    thread: int
    """Its thread id; the pid for the main thread."""
    user: str
    name: str
    waits_in: str = ""
    """The kernel function, of wchan; empty where the kernel does not say."""
    kernel: bool = False
    """A thread of the kernel itself."""


@dataclass(frozen=True)
class Zombie:
    """One that was dead at every look, so that its parent had the time to reap it."""

    pid: int
    name: str
    parent: int
    parent_name: str


@dataclass(frozen=True)
class StuckFacts:
    waiting: tuple[Waiting, ...] = ()
    zombies: tuple[Zombie, ...] = ()
    more: int = 0
    """Found and not listed."""
    over: float = 0.0
    """Seconds between the first and the last look."""
    cut: bool = False
    """More threads than are looked at."""


#: (pid, thread) -> (its switches so far, what it waits in)
_Look = dict[tuple[int, int], tuple[str, str]]


def _collect(_: Ask) -> StuckFacts:
    began = time.monotonic()
    table = processes.table()
    dead = {p.pid: p for p in table.values() if p.state == "Z"}
    still, cut = _in_wait(table)
    for due in _LOOKS[1:]:
        time.sleep(max(0.0, began + due - time.monotonic()))
        still = {key: then for key, then in still.items() if _look(*key) == then}
        dead = {pid: p for pid, p in dead.items() if _still_dead(p)}
    over = time.monotonic() - began
    waiting = [_describe(table[pid], thread, wait) for (pid, thread), (_, wait) in still.items()]
    zombies = [_zombie(p, table) for p in dead.values()]
    more = max(0, len(waiting) - _MOST) + max(0, len(zombies) - _MOST)
    return StuckFacts(tuple(waiting[:_MOST]), tuple(zombies[:_MOST]), more, round(over, 2), cut)


def _in_wait(table: dict[int, Process]) -> tuple[_Look, bool]:
    """Every thread in D now, and whether there were too many threads to look at all."""
    found: _Look = {}
    left = _THREADS_MOST
    for pid in table:
        for thread in _threads(pid):
            left -= 1
            if left < 0:
                return found, True
            look = _look(pid, thread)
            if look is not None:
                found[pid, thread] = look
    return found, False


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task") if name.isdecimal()]
    except OSError:
        return []


def _look(pid: int, thread: int) -> tuple[str, str] | None:
    """(context switches, kernel function) of a thread in D; None for any other."""
    folder = f"/proc/{pid}/task/{thread}"
    if state(_read(f"{folder}/stat")) != "D":
        return None
    switches = re.findall(rb"ctxt_switches:\t(\d+)", _read(f"{folder}/status"))
    return b" ".join(switches).decode("ascii"), _wait(_read(f"{folder}/wchan"))


def state(stat: bytes) -> str:
    """The letter of proc(5)'s stat, whatever the name in parentheses holds; "" without one."""
    _, end, rest = stat.rpartition(b")")
    return rest.strip()[:1].decode("ascii", "replace") if end else ""


def _wait(data: bytes) -> str:
    text = processes.printable(data.strip())
    return "" if text == "0" else text


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _still_dead(process: Process) -> bool:
    now = processes.read(process.pid)
    return now is not None and now.identity == process.identity and now.state == "Z"


def _describe(process: Process, thread: int, waits_in: str) -> Waiting:
    return Waiting(
        pid=process.pid,
        start_time=process.identity.start_time,
        thread=thread,
        user=processes.user(process.pid),
        name=process.name,
        waits_in=waits_in,
        kernel=process.parent == 2 or process.pid == 2,
    )


def _zombie(process: Process, table: dict[int, Process]) -> Zombie:
    parent = table.get(process.parent)
    return Zombie(process.pid, process.name, process.parent, parent.name if parent else "")


PROBE = Probe("stuck", StuckFacts, _collect, timeout=6.0)
