"""Processes of this host, read from /proc: who is who, whose child, and signals that cannot miss.

A pid is reused, so every act here names a process by pid and start time.
What a process calls itself is untrusted: names come out printable and short.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from . import cgroups

#: Set in a worker's environment, so that its processes can be found after their parents died.
RUN_VARIABLE = "EAGLE3_RUN"

#: Longest command line handed out, in characters.
_COMMAND_MAX = 300


@dataclass(frozen=True)
class Identity:
    """One process and no other: ``start_time`` is field 22 of /proc/PID/stat, ticks since boot."""

    pid: int
    start_time: int


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    identity: Identity
    parent: int
    state: str
    """One letter, as in proc(5): R, S, D, Z and so on."""
    name: str
    """The kernel's short name, made printable."""
    session: int = 0
    """The pid that began its session, which no other process can get while a member lives."""

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def running(self) -> bool:
        """False for one that is dead and waits for its parent to take note."""
        return self.state not in "ZXx"


def boot_id() -> str:
    """Changes with every boot; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def read(pid: int) -> Process | None:
    """The process with this pid now; None when there is none."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the name stands in parentheses and may hold ")" itself: the last one ends it
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    name = printable(head.partition(b"(")[2])
    state, parent, _, session = fields[:4]
    started = int(fields[19])
    return Process(Identity(pid, started), int(parent), state.decode("ascii"), name, int(session))


def identity(pid: int) -> Identity | None:
    process = read(pid)
    return process.identity if process else None


def alive(who: Identity) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    process = read(who.pid)
    return process is not None and process.identity == who and process.running


def table() -> dict[int, Process]:
    """Every process that can be seen, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            process = read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descendants(pid: int) -> list[Process]:
    """All below ``pid``, zombies included, parents before their children."""
    processes = table()
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    rest = [pid]
    while rest:
        below = children.pop(rest.pop(), [])
        found += below
        rest += [p.pid for p in below]
    return found


def marked(folder: str, worker: int = 0) -> list[Process]:
    """Living processes that carry ``RUN_VARIABLE=folder``: a run's, whoever is their parent now.

    vLLM's processes write their title over their environment.  With ``worker``, the pid that the
    run's worker had in this boot, those of its session that work in ``folder`` are found as well.
    Only this user's processes can be read (all of them by root).
    """
    wanted = os.fsencode(f"{RUN_VARIABLE}={folder}")
    found = []
    for process in table().values():
        with contextlib.suppress(OSError):
            data = Path(f"/proc/{process.pid}/environ").read_bytes()
            if process.running and (
                wanted in data.split(b"\0")
                or (process.session == worker != 0 and works_in(process.pid, folder))
            ):
                found.append(process)
    return found


def works_in(pid: int, folder: str) -> bool:
    """Whether this is the process's working folder; False where that cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(folder)
    except OSError:
        return False


def send(who: Identity, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # a kernel before 5.3, or a sandbox without the call
        return _send_plain(who, number)
    try:
        # the handle is of whoever had the pid just now: ask who that is, then use the handle
        if not alive(who):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def _send_plain(who: Identity, number: int) -> bool:
    if not alive(who):
        return False
    try:
        os.kill(who.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def command(pid: int) -> str:
    """The command line, printable and cut; the short name for one without (kernel threads)."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        data = b""
    text = printable(data[: 8 * _COMMAND_MAX].rstrip(b"\0").replace(b"\0", b" "))
    if text.strip():
        return text
    process = read(pid)
    return process.name if process else ""


def user(pid: int) -> str:
    """The effective user's name, or the uid; empty when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return ""
    found = re.search(rb"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    if found is None:
        return ""
    try:
        return printable(pwd.getpwuid(int(found[1])).pw_name.encode())
    except KeyError:
        return found[1].decode("ascii")


def started(pid: int) -> float | None:
    """Epoch seconds at which the process began; None when it is gone."""
    process = read(pid)
    boot = _boot_time()
    if process is None or boot is None:
        return None
    return boot + process.identity.start_time / os.sysconf("SC_CLK_TCK")


def _boot_time() -> float | None:
    try:
        found = re.search(rb"^btime (\d+)", Path("/proc/stat").read_bytes(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def in_first_namespace() -> bool:
    """Whether pids here are the kernel's own; False in most containers."""
    try:
        # the inode of the first pid namespace is fixed (PROC_PID_INIT_INO in proc_ns.h)
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return True


def maps(pid: int, library: bytes) -> bool:
    """Whether the process has mapped a file with this in its path; False when it cannot be read."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def owner(pid: int) -> str:
    """Who started it, in words: a container, a job, a service; empty when nothing says."""
    try:
        return owner_of(Path(f"/proc/{pid}/cgroup").read_text("utf-8", errors="replace"))
    except OSError:
        return ""


def owner_of(cgroup: str) -> str:
    """The same from the text of /proc/PID/cgroup; pure."""
    found = cgroups.parse(cgroup)
    if found.container:
        return f"container {found.container.partition(' ')[2]}"
    if found.job:
        kind, _, number = found.job.partition(" ")
        return f"{kind} job {number}"
    unit = found.unit or found.session
    return f"unit {printable(unit.encode())}" if unit else ""


def printable(data: bytes) -> str:
    """Bytes as text without control characters, bidi controls or line ends; cut."""
    text = data.decode("utf-8", errors="replace")[:_COMMAND_MAX]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
