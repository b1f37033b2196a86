"""End processes and prove that they are gone: TERM, then INT, then KILL until nobody is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from .processes import Process, descendants, read, send, table


@dataclass(frozen=True)
class Step:
    """How long a signal gets to work before the next one (seconds)."""

    signal: signal.Signals
    patience: float


#: 10 s in all; INT is what vLLM and Python's multiprocessing clean up on when TERM is ignored.
STEPS = (
    Step(signal.SIGTERM, 4.0),
    Step(signal.SIGINT, 2.0),
    Step(signal.SIGKILL, 4.0),
)

_POLL = 0.05

#: Looks at a tree that is killed; each finds what was born during the one before.
_ROUNDS = 5


def end(
    living: Callable[[], list[Process]],
    said: Callable[[signal.Signals, list[Process]], None],
    steps: tuple[Step, ...] = STEPS,
) -> list[Process]:
    """End what ``living`` returns until it returns nothing; the survivors of KILL, if any.

    ``living`` is asked again and again, so that children born meanwhile are found; it must leave
    zombies out, and take note of those that are the caller's own.  ``said`` hears of each signal
    before it is sent.  A process in an uninterruptible wait (state D) survives until the kernel
    lets it go.
    """
    for step in steps:
        reached: set[object] = set()
        until = time.monotonic() + step.patience
        while True:
            left = living()
            if not left:
                return []
            fresh = [p for p in left if p.identity not in reached]
            if fresh:
                said(step.signal, fresh)
                for process in fresh:
                    send(process.identity, step.signal)
                    reached.add(process.identity)
            if time.monotonic() > until:
                break
            time.sleep(_POLL)
    return living()


def kill_tree(pid: int) -> None:
    """Kill a process that its parent has not waited for yet, and all below it."""
    root = read(pid)
    if root is None:
        return
    send(root.identity, signal.SIGSTOP)  # what is stopped starts nothing more
    kill_below(pid)
    send(root.identity, signal.SIGKILL)


def kill_below(pid: int) -> None:
    """Kill all that a process started.

    What began a session is killed with its whole session: its members cannot leave by losing
    their parent.
    """
    root = read(pid)
    sessions = {pid} if root is not None and root.session == pid else set()
    for _ in range(_ROUNDS):
        below = descendants(pid)
        sessions |= {p.session for p in below if p.session == p.pid}
        found = {p.pid: p for p in below}
        found |= {p.pid: p for p in table().values() if p.session in sessions}
        living = [p for p in found.values() if p.running and p.pid != pid]
        if not living:
            return
        for process in living:
            send(process.identity, signal.SIGKILL)
