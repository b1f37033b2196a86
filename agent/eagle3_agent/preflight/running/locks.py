"""Check ``locks``: no lock file that a killed process left blocks the load.

Locks of this tool and of filelock (Hugging Face's caches) are held by the kernel and end with
their holders; torch's compiler leaves a file that stays.
"""

from __future__ import annotations

from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, plural, show, when
from eagle3_agent.protocol.values import Action, Profile, Verdict

from .lock_facts import PROBE, Baton, Held

_SHOWN = 6

#: Seconds after which a baton that no process has open is stale: the compiler had begun by then.
OLD = 10 * 60.0

#: The same on a network mount, where its maker may live on another host and be compiling.
OLD_ON_NETWORK = 24 * 3600.0

_WAITER = "torch's loader of this extension"


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    stale = [b for b in seen.batons if is_stale(b)]
    unsure = [b for b in seen.batons if not is_stale(b) and not b.holder]
    tail = _tail(seen.held, [b for b in seen.batons if b.holder])
    if stale:
        return CHECK.verdict(
            "warn",
            "\n".join(_line(b) for b in [*stale, *unsure][:_SHOWN]) + tail,
            "torch waits for such a file to go, without a word and without end, when it next "
            "builds or loads that extension.",
            "Remove it: " + listed([show(b.path, 200) for b in stale], 3),
            [_offer(b) for b in stale if b.ours],
        )
    if unsure:
        return CHECK.verdict(
            "warn",
            "\n".join(_line(b) for b in unsure[:_SHOWN]) + tail,
            "Whether its maker still compiles cannot be told from here; "
            "if not, torch waits for it without end.",
            "Look whether somebody compiles (on every host that shares the folder); "
            "if nobody does, remove it.",
        )
    if seen.held:
        return CHECK.verdict(
            "warn",
            "\n".join(_held(h) for h in seen.held[:_SHOWN]) + _tail((), seen.batons),
            "A load that needs the same file waits until that process lets go.",
            "Let it finish its download, or end it if it hangs.",
        )
    if seen.cut:
        return CHECK.verdict(
            "warn", f"none among the first looked at{tail}", "There are more lock files than that."
        )
    where = listed([show(p, 60) for p in seen.looked_at], 3)
    none = f"none in {where}" if where else "no cache here keeps lock files"
    return CHECK.verdict("pass", f"{none}{tail}")


def is_stale(baton: Baton) -> bool:
    """Old, and nobody has it open, as far as this can be seen."""
    if baton.holder:
        return False
    if baton.network:
        return baton.age > OLD_ON_NETWORK
    return baton.age > OLD and (baton.unseen == 0 or baton.age > OLD_ON_NETWORK)


def _offer(baton: Baton) -> Action:
    info = offers.FileInfo(baton.device, baton.inode, baton.modified)
    return offers.remove_lock(baton.path, info, waits=_WAITER)


def _line(baton: Baton) -> str:
    place = f" on {baton.network}" if baton.network else ""
    unseen = f" ({plural(baton.unseen, 'process', 'processes')} could not be asked)"
    return (
        f"{show(baton.path, 200)}{place}, made {when(baton.modified)}, "
        f"no process seen that has it open{unseen if baton.unseen else ''}"
    )


def _held(held: Held) -> str:
    return (
        f"{show(held.path, 160)} is held by pid {held.pid} "
        f"{show(held.user, 32) or 'unknown user'} {show(held.command, 80)}"
    )


def _tail(held: tuple[Held, ...], busy: list[Baton] | tuple[Baton, ...]) -> str:
    parts = [f"{show(b.path, 120)} is in use by pid {b.holder}" for b in busy[:2] if b.holder]
    parts += [_held(h) for h in held[:2]]
    return "".join(f"\n{part}" for part in parts)


CHECK = Check(
    id="locks",
    title="No lock file blocks a load",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="The folder of a cache hangs, as a dead network mount does; a load would, too.",
    silence_todo="Look at ~/.cache and HF_HOME with ls; bring their server back.",
)
