"""Failures that a log tells in a line of its own, without a traceback of Python's; pure."""

from __future__ import annotations

import re

from .found import Found, Raised
from .loglines import Line, rank_of

#: Only lines with one of these in them can begin something while no traceback is open.
SIGNS = (
    b"Traceback",
    b"Fatal Python error",
    b"terminate called",
    b"illed",
    b"Segmentation fault",
    b"Bus error",
    b"Aborted",
    b"Illegal instruction",
    b"Floating point exception",
    b"Watchdog caught",
    b"watchdog thread",
    b"died unexpectedly",
    b"NCCL WARN",
    b"failed (exitcode",
    b"oom_kill",
    b"oom-kill",
    b"Out Of Memory",
)

_WATCHDOG = re.compile(r"(Watchdog caught collective operation timeout.{0,600})")
_WATCHED = re.compile(r"watchdog thread terminated with exception: (CUDA error: .{1,600})")
_ITS_RANK = re.compile(r"[Rr]ank (\d{1,5})\]")
_DIED = re.compile(r"(?:Worker|Engine core) proc (\S{1,60}) died unexpectedly")
#: torchrun's own words about a process that it started
_ENDED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) \(pid: \d{1,10}\)")
_SLURM = re.compile(
    r"(?:slurmstepd|srun): error: (?:.{0,80}: task (\d{1,5}): (Out Of Memory|Killed)"
    r"|(Detected \d+ oom[_-]kill event.{0,120}))"
)
#: bash with and without a script, zsh, and a bare word
_SHELL = re.compile(
    r"(?:\S{1,200}: line \d+: +\d+ |\[\d+\]\+? +(?:\d+ )?|zsh: )?"
    r"([Kk]illed|Segmentation fault|Bus error|Aborted|Illegal instruction|"
    r"Floating point exception)(?: +\(core dumped\))?(?:\s{2,}.*|\s+\S*python.*)?$"
)
_NCCL_WARN = re.compile(r"NCCL WARN (.{1,400})")


def signs(data: bytes) -> list[int]:
    """Where in ``data`` something may begin, in order; far quicker than one expression for all."""
    places = []
    for sign in SIGNS:
        at = data.find(sign)
        while at >= 0:
            places.append(at)
            at = data.find(b"\n", at)
            at = data.find(sign, at) if at >= 0 else -1
    return sorted(places)


def told(line: Line, number: int, before: tuple[str, ...] = ()) -> Found | None:
    """The failure that the line names by itself; None for any other line."""
    text = line.text
    if found := _WATCHDOG.search(text):
        return _one(_ranked(line), line, number, "Timeout", found[1])
    if found := _WATCHED.search(text):
        return _one(_ranked(line), line, number, "CUDA error", found[1][len("CUDA error: ") :])
    if found := _DIED.search(text):
        return _one(found[1], line, number, "Died", found[0])
    if found := _ENDED.search(text):
        return _one(f"rank{found[2]}", line, number, "Died", _exit(int(found[1])))
    if found := _SLURM.search(text):
        who = f"rank{found[1]}" if found[1] else line.process
        return _one(who, line, number, "Killed", found[3] or f"task {found[1]}: {found[2]}")
    if not line.level and (found := _SHELL.match(text)):
        return _one(line.process, line, number, found[1].capitalize(), "", before)
    return None


def nccl(line: Line) -> str | None:
    """What NCCL warns of."""
    found = _NCCL_WARN.search(line.text) if "NCCL" in line.text else None
    return found[1] if found else None


def _one(
    process: str,
    line: Line,
    number: int,
    kind: str,
    message: str,
    before: tuple[str, ...] = (),
) -> Found:
    return Found(process, line.level, (Raised(kind, message),), number, number + 1, before)


def _ranked(line: Line) -> str:
    found = _ITS_RANK.search(line.text)
    return f"rank{found[1]}" if found and rank_of(line.process) is None else line.process


def _exit(code: int) -> str:
    number = f" (signal {-code}{', SIGKILL' if code == -9 else ''})" if code < 0 else ""
    return f"exit code {code}{number}; torchrun ended the others"
