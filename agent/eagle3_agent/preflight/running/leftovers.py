"""Check ``leftovers``: no process of an earlier run lives on without its supervisor."""

from __future__ import annotations

import os

from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, plural, show, when
from eagle3_agent.protocol.values import Action, Profile, Verdict

from .process_facts import PROBE, ProcessFacts, Seen

_SHOWN = 8


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    of_runs = [p for p in seen.found if p.kind == "run"]
    left = [p for p in of_runs if not p.guarded]
    guarded = sorted({name_of(p) for p in of_runs if p.guarded})
    tail = hidden(seen)
    if guarded:
        names = listed([_end_of(r) for r in guarded], 2)
        tail = f"; running under a supervisor: {names}{tail}"
    if not left:
        if seen.blind:
            return _blind(seen.blind, tail)
        if seen.more:
            return _too_many(seen.more, tail)
        return CHECK.verdict("pass", f"no process of an earlier run is left{tail}")
    here = [p for p in left if not p.elsewhere]
    lines = [line_of(p) for p in (here or left)[:_SHOWN]]
    rest = len(here or left) - _SHOWN
    saw = "\n".join(lines) + (f"\nand {rest} more" if rest > 0 else "") + tail
    if not here:
        return CHECK.verdict(
            "warn",
            saw,
            "Their run is kept in another state folder and no supervisor is above them; "
            "they may hold GPU memory or take it at any time.",
            f"If they are yours and not needed: kill {_pids(left)}",
            _offers(left),
        )
    stuck = [str(p.pid) for p in here if p.state == "D"]
    return CHECK.verdict(
        "block",
        saw,
        "Their supervisor is gone, so they will not leave by themselves; "
        "they can hold GPU memory and write into the output folder.",
        f"End them: kill {_pids(here)} (after {offers.PATIENCE:g} s: kill -9)"
        + (f"; {' '.join(stuck)} waits in the kernel and may need a reboot" if stuck else "")
        + _spared(here),
        _offers(left),
    )


def _blind(why: str, tail: str) -> Verdict:
    return CHECK.verdict(
        "warn",
        f"no process with the mark of a run is left unguarded{tail}; "
        f"the folders of this home's runs cannot be read: {show(why, 100)}",
        "vLLM's processes write over their mark; which of them a run left, those folders say.",
        "Make the agent's state folder readable to it (see `records`), and check again.",
    )


def _too_many(more: int, tail: str) -> Verdict:
    return CHECK.verdict(
        "warn",
        f"none among those listed, and {plural(more, 'process', 'processes')} more "
        f"of runs, vLLM or GPUs were not looked at{tail}",
        "A leftover could be among them.",
        "End what is not needed of the check `others`, and check again.",
    )


def _offers(left: list[Seen]) -> list[Action]:
    """One for what each run left, the runs of this home first."""
    by_run: dict[str, list[Seen]] = {}
    for process in sorted(left, key=lambda p: p.elsewhere):
        if not process.spared and process.state != "D":
            by_run.setdefault(process.run, []).append(process)
    found = [
        offers.terminate([target_of(p) for p in group], f"left by run {name_of(group[0])}")
        for group in by_run.values()
    ]
    return [action for action in found if action is not None]


def _spared(processes: list[Seen]) -> str:
    reasons = sorted({f"{p.pid}: {p.spared}" for p in processes if p.spared})
    return f". Not by this agent: {listed([show(r, 160) for r in reasons], 3)}" if reasons else ""


def target_of(process: Seen) -> offers.Target:
    return offers.Target(process.pid, process.start_time, process.user, process.command)


def line_of(process: Seen) -> str:
    of_run = f", of run {show(name_of(process), 200)}" if process.run else ""
    stuck = ", stuck in the kernel (D)" if process.state == "D" else ""
    return (
        f"pid {process.pid} {show(process.user, 32) or 'unknown user'} "
        f"{show(process.command, 100)} since {when(process.started)}{of_run}{stuck}"
    )


def hidden(seen: ProcessFacts) -> str:
    """What could not be looked at, in words that follow what could."""
    if seen.only_own:
        return "; other users' processes cannot be seen here (/proc is mounted with hidepid)"
    count = seen.hidden
    who = plural(count, "process of another user", "processes of other users")
    return f" ({who} cannot be looked into)" if count else ""


def name_of(process: Seen) -> str:
    """A run by its number; one that is kept elsewhere by its folder."""
    return process.run if process.elsewhere else os.path.basename(process.run)


def _end_of(name: str) -> str:
    """A long folder by its end, which tells runs apart."""
    shown = show(name)
    return shown if len(shown) <= 48 else f"…{shown[-47:]}"


def _pids(found: list[Seen]) -> str:
    return " ".join(str(p.pid) for p in found[:32])


SILENCE_WHY = "A process in D state can block every reader of /proc."
SILENCE_TODO = "Look with ps -eo pid,stat,user,etime,comm; a stuck process may need a reboot."

CHECK = Check(
    id="leftovers",
    title="No leftovers of earlier runs",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENCE_WHY,
    silence_todo=SILENCE_TODO,
)
