"""Ends processes that are known by pid and start time: TERM, wait, KILL, and who left when."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_agent import processes
from eagle3_agent.preflight.running.guard import why_not
from eagle3_agent.preflight.running.of_runs import Census
from eagle3_agent.processes import Identity
from eagle3_agent.protocol.values import ProcessRef

from .offers import PATIENCE
from .refused import look_again

#: Seconds that the kernel gets to take a killed process away.
AFTER_KILL = 5.0

#: Seconds between two looks where the kernel has no pidfd.
_GLANCE = 0.05


@dataclass
class _Held:
    """A process that cannot be mistaken any more: its handle stays its own whoever gets its pid."""

    who: Identity
    handle: int | None
    """A pidfd; None before Linux 5.3."""

    def signal(self, number: signal.Signals) -> bool:
        if self.handle is None:
            return processes.send(self.who, number)
        if not processes.alive(self.who):
            return False
        try:
            signal.pidfd_send_signal(self.handle, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)


def end(refs: Sequence[ProcessRef], patience: float = PATIENCE) -> tuple[str, ...]:
    """End exactly these; lines of what was done, with times.

    All are looked at before the first signal: NotTaken if one must not be ended, or its pid is now
    another's.  ``patience``: seconds between TERM and KILL.
    """
    held: list[_Held] = []
    try:
        lines = []
        for ref in refs:
            one = _hold(ref)
            if one is None:
                lines.append(f"pid {ref.pid} had left already")
            else:
                held.append(one)
        _refuse(held)
        return (*lines, *_end(held, patience))
    finally:
        for one in held:
            one.close()


def _hold(ref: ProcessRef) -> _Held | None:
    """A handle on this process; None when it is gone, NotTaken when its pid is another's."""
    who = Identity(ref.pid, ref.start_time)
    handle: int | None = None
    try:
        handle = os.pidfd_open(ref.pid)
    except ProcessLookupError:
        return None
    except (OSError, AttributeError):
        handle = None
    # whoever had the pid a moment ago is held: ask now who that is
    now = processes.read(ref.pid)
    if now is not None and now.identity == who and now.running:
        return _Held(who, handle)
    if handle is not None:
        os.close(handle)
    if now is None or now.identity == who:
        return None
    raise look_again(
        "The process is another one now",
        f"pid {ref.pid} was given to {now.name}: the one that was shown has left",
    )


def _refuse(held: list[_Held]) -> None:
    census = Census()
    for one in held:
        process = census.table.get(one.who.pid)
        why = why_not(one.who.pid, census) if process and process.identity == one.who else ""
        if why:
            raise look_again(f"Pid {one.who.pid} is not ended", why)


def _end(held: list[_Held], patience: float) -> list[str]:
    lines: list[str] = []
    left = held
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, AFTER_KILL)):
        told = [one for one in left if one.signal(number)]
        if told:
            pids = ", ".join(str(one.who.pid) for one in told)
            lines.append(f"{number.name} sent to pid {pids}")
        lines += [_missed(one, number) for one in left if one not in told]
        left = _wait(told, seconds, number, lines)
        if not left:
            return lines
    for one in left:
        process = processes.read(one.who.pid)
        state = f"state {process.state}" if process else "unknown state"
        lines.append(
            f"pid {one.who.pid} is still there {AFTER_KILL:g} s after SIGKILL ({state}): "
            "it leaves when the kernel lets it go"
        )
    return lines


def _missed(one: _Held, number: signal.Signals) -> str:
    if processes.alive(one.who):
        return f"pid {one.who.pid} may not be signalled by this agent"
    return f"pid {one.who.pid} left before {number.name}"


def _wait(
    told: list[_Held], seconds: float, number: signal.Signals, lines: list[str]
) -> list[_Held]:
    """Those that did not leave in time; a line for each that did."""
    began = time.monotonic()
    left = list(told)
    while left:
        remaining = began + seconds - time.monotonic()
        gone = _gone(left, max(0.0, remaining))
        after = time.monotonic() - began
        for one in gone:
            lines.append(f"pid {one.who.pid} left {after:.1f} s after {number.name}")
            left.remove(one)
        if remaining <= 0:
            break
    return left


def _gone(left: list[_Held], seconds: float) -> list[_Held]:
    """Wait until one of them has ended, or for so long; who has ended."""
    poll = select.poll()
    by_handle = {one.handle: one for one in left if one.handle is not None}
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    plain = [one for one in left if one.handle is None]
    span = min(seconds, _GLANCE) if plain else seconds
    ready = poll.poll(span * 1000) if by_handle or span else []
    return [by_handle[fd] for fd, _ in ready] + [p for p in plain if not processes.alive(p.who)]
