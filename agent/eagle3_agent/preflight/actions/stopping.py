"""Stops a systemd unit, if systemd and what runs in it allow that now."""

from __future__ import annotations

import time

from eagle3_agent import cgroups, processes
from eagle3_agent.preflight import bounded
from eagle3_agent.preflight.running.guard import never
from eagle3_agent.preflight.running.of_runs import Census
from eagle3_agent.preflight.text import show

from .offers import stop_command
from .refused import look_again
from .units import environment, look

#: Seconds: systemd itself gives a service 90 s before it kills it (TimeoutStopSec).
_TIMEOUT = 100.0


def stop(name: str) -> tuple[str, ...]:
    """What was done; NotTaken when the unit must not be stopped or systemctl is not there."""
    unit = look([name])[0]
    if unit.refusal:
        raise look_again(f"{show(name, 80)} is not stopped", unit.refusal)
    _refuse(name)
    argv = stop_command(name)
    env = environment(cgroups.split_user(name)[0] is not None)
    began = time.monotonic()
    try:
        answer = bounded.run(argv, timeout=_TIMEOUT, own_session=False, env=env)
    except OSError as error:
        raise look_again("systemctl cannot be run", error.strerror or str(error)) from None
    seconds = time.monotonic() - began
    said = show(answer.last_words(), 300)
    if answer.cut:
        return (
            f"{' '.join(argv)}: did not end within {_TIMEOUT:g} s; systemd goes on stopping it",
        )
    if answer.status != 0:
        return (f"{' '.join(argv)}: failed after {seconds:.1f} s: {said or 'without a word'}",)
    return (f"{' '.join(argv)}: done in {seconds:.1f} s",)


def _refuse(name: str) -> None:
    """Nothing that no action may end is ended by way of its unit."""
    census = Census()
    for pid, process in census.table.items():
        if process.running and cgroups.place(pid).unit == name:
            why = never(pid, census)
            if why:
                text = f"pid {pid} ({processes.command(pid)[:80]}) runs in it: {why}"
                raise look_again(f"{show(name, 80)} is not stopped", text)
