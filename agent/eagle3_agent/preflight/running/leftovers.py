"""Check ``leftovers``: nothing of an earlier run lives on, and who else runs vLLM here."""

from __future__ import annotations

import os

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, plural, show, when
from eagle3_agent.protocol.values import Profile, Verdict

from .leftovers_facts import PROBE, Leftover

_SHOWN = 8


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    left = [p for p in seen.found if not p.guarded]
    ours = [p for p in left if p.kind == "run" and not p.elsewhere]
    guarded = sorted({_name(p) for p in seen.found if p.guarded})
    others = [p for p in left if p.kind == "vllm" or p.elsewhere]
    hidden = f"; {plural(seen.hidden, 'process', 'processes')} of other users not readable"
    tail = hidden if seen.hidden else ""
    if ours:
        return _ours(ours, seen.more, tail)
    going = f"running under a supervisor: {listed([show(r, 200) for r in guarded])}"
    if others:
        saw = "\n".join(_line(p) for p in others[:_SHOWN])
        rest = len(others) - _SHOWN + seen.more
        return CHECK.verdict(
            "warn",
            saw
            + (f"\nand {rest} more" if rest > 0 else "")
            + (f"\n{going}" if guarded else "")
            + tail,
            "No run that is kept here; they may hold GPU memory or take it at any time.",
            f"If they are yours and not needed: kill {_pids(others)}",
        )
    if guarded:
        return CHECK.verdict("pass", f"nothing left over; {going}{tail}")
    return CHECK.verdict("pass", f"no process of an earlier run and no vLLM process{tail}")


def _ours(ours: list[Leftover], more: int, tail: str) -> Verdict:
    lines = [_line(p) for p in ours[:_SHOWN]]
    rest = len(ours) - _SHOWN + more
    stuck = [str(p.pid) for p in ours if p.state == "D"]
    return CHECK.verdict(
        "block",
        "\n".join(lines) + (f"\nand {rest} more" if rest > 0 else "") + tail,
        "Their supervisor is gone, so they will not leave by themselves; "
        "they can hold GPU memory and write into the output folder.",
        f"End them: kill {_pids(ours)} (after 5 s: kill -9)"
        + (f"; {' '.join(stuck)} waits in the kernel and may need a reboot" if stuck else ""),
    )


def _line(process: Leftover) -> str:
    of_run = f", of run {show(_name(process), 200)}" if process.run else ""
    stuck = ", stuck in the kernel (D)" if process.state == "D" else ""
    return (
        f"pid {process.pid} {show(process.user, 32) or 'unknown user'} "
        f"{show(process.command, 100)} since {when(process.started)}{of_run}{stuck}"
    )


def _name(process: Leftover) -> str:
    """A run by its number; one that is kept elsewhere by its folder."""
    return process.run if process.elsewhere else os.path.basename(process.run)


def _pids(found: list[Leftover]) -> str:
    return " ".join(str(p.pid) for p in found[:32])


CHECK = Check(
    id="leftovers",
    title="Processes of earlier runs",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="A process in D state can block every reader of /proc.",
    silence_todo="Look with ps -eo pid,stat,user,etime,cmd; a stuck process may need a reboot.",
)
