"""Actions as a verdict offers them: who or what exactly, and everything that will happen; pure."""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_agent import cgroups
from eagle3_agent.preflight.text import show, when
from eagle3_agent.protocol.values import Action, GpuProcess, ProcessRef

from .units import UnitFacts

#: Seconds between TERM and KILL.
PATIENCE = 10.0

#: Processes that one action ends at most; a person has to be able to read them.
MOST = 32

_ASIDE = re.compile(r"\.aside-\d{8}-\d{6}")


@dataclass(frozen=True)
class Target:
    """A process as an action names it; what it calls itself is untrusted."""

    pid: int
    start_time: int
    """Clock ticks since boot, field 22 of proc(5)'s stat."""
    user: str = ""
    command: str = ""


@dataclass(frozen=True)
class FileInfo:
    """What a path was when it was looked at (lstat): what is acted on must still be it."""

    device: int
    inode: int
    modified: float = 0.0
    """Epoch seconds."""


def target(process: GpuProcess) -> Target | None:
    """A GPU's holder as a target; None where nobody could say who exactly it is."""
    if process.start_time is None:
        return None
    return Target(process.pid, process.start_time, process.user, process.command)


def terminate(processes: Sequence[Target], what: str) -> Action | None:
    """End these processes; None when there are none, or more than anyone can agree to.

    ``what`` says what they are, such as ``what run 0003 left``.  The caller leaves out whom
    ``guard.why_not`` spares.
    """
    chosen = sorted(processes, key=lambda p: p.pid)
    if not 0 < len(chosen) <= MOST:
        return None
    pids = " ".join(str(p.pid) for p in chosen)
    first = chosen[0]
    many = len(chosen) > 1
    title = f"End {show(what, 80)}: {len(chosen)} processes" if many else _end_one(first, what)
    return Action(
        id=f"terminate-{first.pid}" + (f"-and-{len(chosen) - 1}" if many else ""),
        kind="terminate",
        title=title,
        effect=(
            *(f"pid {p.pid} {_user(p.user)}: {show(p.command, 100)}" for p in chosen),
            f"TERM, {PATIENCE:g} s to leave, then KILL to who is left",
            "each is known by pid and start time; a pid that passed to another is left alone",
            f"the same as: kill {pids}; sleep {PATIENCE:g}; kill -9 {pids}",
        ),
        processes=tuple(ProcessRef(p.pid, p.start_time) for p in chosen),
    )


def _end_one(process: Target, what: str) -> str:
    name = show(process.command, 60).partition(" ")[0].rpartition("/")[2]
    return f"End pid {process.pid} ({name or 'without a name'}), {show(what, 80)}"


def _user(name: str) -> str:
    return show(name, 32) or "of an unknown user"


def stop_unit(unit: UnitFacts, processes: Sequence[Target] = ()) -> Action | None:
    """Stop a systemd unit; None where this agent cannot or must not (``unit.refusal`` says why).

    ``processes`` are those of its own that are known, so that a person sees whom it ends.
    """
    if unit.refusal:
        return None
    name = cgroups.split_user(unit.name)[1]
    known = sorted(processes, key=lambda p: p.pid)[:MOST]
    return Action(
        id=f"stop-unit-{name}",
        kind="stop-unit",
        title=f"Stop {unit.name}",
        effect=(
            shlex.join(stop_command(unit.name)),
            "every process of the unit is ended, as its own settings say"
            + (", among them:" if known else ""),
            *(f"pid {p.pid} {_user(p.user)}: {show(p.command, 100)}" for p in known),
            *_comes_back(unit),
        ),
        unit=unit.name,
    )


def stop_command(unit: str) -> list[str]:
    """The argv that stops a unit, of the system or of the agent's own user."""
    user, name = cgroups.split_user(unit)
    manager = ["--user"] if user is not None else []
    return ["systemctl", *manager, "--no-ask-password", "stop", "--", name]


def _comes_back(unit: UnitFacts) -> list[str]:
    """Whether it starts again: by itself, by what triggers it, at boot."""
    user, name = cgroups.split_user(unit.name)
    ctl = "systemctl --user" if user is not None else "systemctl"
    lines = []
    if unit.restart not in ("", "no"):
        lines.append(
            f"Restart={unit.restart}: systemd starts it again after a crash or a kill, "
            "not after this stop"
        )
    else:
        lines.append("it does not start again by itself (Restart=no)")
    if unit.triggers:
        names = ", ".join(show(t, 80) for t in unit.triggers[:4])
        lines.append(f"but {names} can start it again: stop that, too, if it does")
    if unit.at_boot in ("enabled", "enabled-runtime", "linked", "alias", "generated"):
        when_ = "login" if user is not None else "boot"
        lines.append(
            f"it is {unit.at_boot}: the next {when_} starts it again; "
            f"stopping does not disable it ({ctl} disable {name} would)"
        )
    else:
        state = f" ({show(unit.at_boot, 20)})" if unit.at_boot else ""
        lines.append(f"nothing is disabled; it is not enabled at boot{state}")
    lines.append(f"back again with: {ctl} start {name}")
    return lines


def remove_lock(path: str, info: FileInfo, waits: str = "") -> Action:
    """Remove a stale lock file; ``waits`` says what waits for it, such as ``torch's loader``."""
    return Action(
        id=f"remove-lock-{_digest(path)}",
        kind="remove-lock",
        title=f"Remove the lock {show(path, 120)}",
        effect=(
            f"unlink {show(path, 400)}, last written {when(info.modified)}",
            "only if it is still the same file and no process holds a lock on it or has it open",
            *([f"{show(waits, 120)} goes on then"] if waits else []),
            f"the same as: rm -- {_quoted(path)}",
        ),
        path=path,
        device=info.device,
        inode=info.inode,
    )


def move_aside(path: str, info: FileInfo, now: float) -> Action:
    """Rename a file or folder within its own folder; ``now`` (epoch seconds) names the target.

    ``path`` is absolute and no link: a caller resolves it first.
    """
    clean = path.rstrip("/")
    aside = clean + time.strftime(".aside-%Y%m%d-%H%M%S", time.localtime(now))
    return Action(
        id=f"move-aside-{_digest(clean)}",
        kind="move-aside",
        title=f"Move {show(clean, 120)} aside",
        effect=(
            f"from {show(clean, 400)}",
            f"to   {show(aside, 400)}",
            "a rename within the same folder: nothing is copied, nothing is deleted, "
            "nothing is overwritten",
            f"the same as: mv -n -T -- {_quoted(clean)} {_quoted(aside)}",
        ),
        path=clean,
        aside=aside,
        device=info.device,
        inode=info.inode,
    )


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def _quoted(path: str) -> str:
    return show(shlex.quote(path), 420)


def same(asked: Action, offered: Action) -> bool:
    """Whether both do the same to the same, in what is done and not in how it is told.

    A name to move to holds the minute of its offer: any that this path could have been offered is
    as good, and what a person has read is what is done.
    """
    asides = asked.aside == offered.aside or (
        offered.aside != ""
        and asked.aside.startswith(offered.path)
        and _ASIDE.fullmatch(asked.aside[len(offered.path) :]) is not None
    )
    return asides and all(
        getattr(asked, name) == getattr(offered, name)
        for name in ("id", "kind", "processes", "unit", "path", "device", "inode")
    )
