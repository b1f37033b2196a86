"""Check ``stuck``: processes that wait in the kernel and cannot be ended, and the unreaped dead."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol.values import Profile, Verdict

from .stuck_facts import PROBE, StuckFacts, Waiting, Zombie

_SHOWN = 6

#: Zombies of one parent from which on its neglect is worth a line: each holds a pid, no memory.
_MANY = 20

#: How kernel functions of known waits begin, and what stands behind them.
_WAITS = (
    (("nvidia", "nv_", "os_acquire", "uvm_", "_nv", "rm_"), "the NVIDIA driver"),
    (("rpc_", "nfs_", "nfs4_", "wait_on_commit", "nfs_wait"), "an NFS server"),
    (("fuse_", "request_wait_answer", "__fuse"), "a FUSE file system's process"),
    (("lustre", "ptlrpc", "osc_", "ll_", "cl_"), "a Lustre server"),
    (("ceph_", "rbd_"), "a Ceph server"),
    (("io_schedule", "folio_wait", "wait_on_page", "blk_", "submit_bio", "bit_wait_io"), "a disk"),
    (("jbd2_", "xfs_", "ext4_", "btrfs_"), "a file system's journal on its disk"),
)
_DRIVER = "the NVIDIA driver"


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    waiting = [w for w in seen.waiting if not w.kernel]
    kernel = [w for w in seen.waiting if w.kernel and what_for(w.waits_in) == _DRIVER]
    neglect = [z for z in seen.zombies if _parents(seen.zombies)[z.parent] >= _MANY]
    tail = _tail(seen)
    if waiting or kernel:
        return _waiting([*waiting, *kernel], seen, tail)
    if neglect:
        return _zombies(neglect, tail)
    if seen.cut:
        told = "A stuck process could be among the rest."
        return CHECK.verdict("warn", f"none found{tail}", told)
    saw = f"nothing stayed in one wait of the kernel over {seen.over:.1f} s"
    return CHECK.verdict("pass", saw + _few(seen.zombies) + tail)


def what_for(function: str) -> str:
    """What a wait in this kernel function is for; empty where its name does not say."""
    for beginnings, what in _WAITS:
        if function.startswith(beginnings):
            return what
    return ""


def _waiting(found: list[Waiting], seen: StuckFacts, tail: str) -> Verdict:
    lines = [_line(w) for w in found[:_SHOWN]]
    rest = len({w.pid for w in found}) - _SHOWN
    reasons = {what_for(w.waits_in) for w in found}
    todo = "Nothing can end them before the wait is over: kill -9 only takes effect then. "
    if _DRIVER in reasons:
        todo += "Look for Xid in the kernel log (dmesg); a driver that hangs needs a reboot."
    elif reasons & {"an NFS server", "a Lustre server", "a Ceph server"}:
        todo += "Bring the server back, or unmount lazily: umount -l MOUNT."
    elif "a disk" in reasons:
        todo += "If it lasts, look at the disk (dmesg, iostat -x 1); a busy one lets go by itself."
    else:
        todo += "Look where they wait as root: cat /proc/PID/stack; then a reboot may be left."
    return CHECK.verdict(
        "warn",
        "\n".join(lines) + (f"\nand {rest} more" if rest > 0 else "") + _few(seen.zombies) + tail,
        "They keep what they hold, GPU memory and open files included, and a run that waits for "
        "the same thing will hang with them.",
        todo,
    )


def _line(w: Waiting) -> str:
    thread = f" thread {w.thread}" if w.thread != w.pid else ""
    place = f" in {show(w.waits_in, 60)}" if w.waits_in else ", the kernel does not say where"
    what = what_for(w.waits_in)
    return (
        f"pid {w.pid}{thread} {show(w.user, 32) or 'unknown user'} {show(w.name, 40)} "
        f"waits in the kernel (D){place}" + (f", for {what}" if what else "")
    )


def _zombies(neglect: list[Zombie], tail: str) -> Verdict:
    parents = sorted({(z.parent, z.parent_name) for z in neglect})
    names = listed([f"pid {pid} ({show(name, 40) or 'unknown'})" for pid, name in parents], 4)
    if parents[0][0] == 1:
        todo = "Pid 1 should: in a container, start it with an init (docker run --init)."
    else:
        todo = "End or restart the parent: its dead pass to pid 1, which reaps them."
    return CHECK.verdict(
        "warn",
        f"{plural(len(neglect), 'zombie')} whose parent does not reap them: {names}{tail}",
        "Each keeps a pid and no memory; a parent that neglects them may hang itself.",
        todo,
    )


def _parents(zombies: Sequence[Zombie]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for zombie in zombies:
        counts[zombie.parent] = counts.get(zombie.parent, 0) + 1
    return counts


def _few(zombies: Sequence[Zombie]) -> str:
    if not zombies:
        return ""
    first = zombies[0]
    parent = f"pid {first.parent} ({show(first.parent_name, 40) or 'unknown'})"
    others = " and others" if len({z.parent for z in zombies}) > 1 else ""
    dead = plural(len(zombies), "dead process", "dead processes")
    return f"; {dead} not reaped yet by {parent}{others}: harmless"


def _tail(seen: StuckFacts) -> str:
    more = f"; {seen.more} more found" if seen.more else ""
    return more + ("; too many threads to look at all" if seen.cut else "")


CHECK = Check(
    id="stuck",
    title="No process stuck in the kernel",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Reading /proc itself hangs, or the host is very slow.",
    silence_todo="Look with ps -eo pid,stat,wchan:30,user,comm | grep ' D'.",
)
