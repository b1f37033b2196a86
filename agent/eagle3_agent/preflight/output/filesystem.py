"""Check ``filesystem``: what kind of disk the output lies on, and what that costs."""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import mounts
from .mounts import Mount
from .output_facts import PROBE

#: Largest file in bytes of filesystems that have a small one.
_SMALL_FILES = {"vfat": 2**32 - 1, "msdos": 2**32 - 1}


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    mount = seen.mount
    if not mount.kind:
        return CHECK.verdict("skip", "the table of mounts does not say which filesystem it is")
    saw = f"{show(mount.kind, 40)} at {show(mount.point, 120)}"
    saw += f" from {show(mount.source, 120)}" if mount.source not in ("none", mount.kind) else ""
    saw += f", {size(seen.total)}" if seen.total else ""
    if mount.read_only:
        return CHECK.verdict(
            "block",
            f"{saw}: mounted read-only",
            "No sample can be written. A disk with errors is often remounted so by the kernel.",
            "Look in dmesg for its errors; choose another output.dir, or have it remounted.",
        )
    trouble = _trouble(mount)
    if trouble:
        return CHECK.verdict("warn", saw, *trouble)
    if mount.kind in mounts.NETWORK or mount.kind in mounts.CLUSTER:
        return CHECK.verdict("pass", f"{saw} (over the network)")
    return CHECK.verdict("pass", saw)


def _trouble(mount: Mount) -> tuple[str, str] | None:
    """(why, what to do) for filesystems that lose or refuse what a run writes."""
    if mount.kind in mounts.MEMORY:
        return (
            "This disk is memory: the samples are gone at a reboot and take memory from the run.",
            "Choose an output.dir on a disk, unless the samples are only for a trial.",
        )
    if mount.kind in mounts.LAYERS:
        return (
            "These are a container's own layers: the samples go when the container is removed.",
            "Choose an output.dir in a volume that outlives the container.",
        )
    if mount.kind in ("nfs", "nfs4") and "soft" in mount.options:
        return (
            "Mounted soft, a server that is slow for a while gives write errors, which end a run.",
            "Have it mounted hard, or choose a local disk.",
        )
    if mount.kind in ("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.goofys"):
        return (
            "A sync returns here before the other side has the data, or each file is sent again "
            "on a rename.",
            "Choose a local disk and copy the samples afterwards.",
        )
    if mount.kind in _SMALL_FILES:
        return (
            f"A file cannot be larger than {size(_SMALL_FILES[mount.kind])} there, and names can "
            "be lost when it is pulled out.",
            "Choose a filesystem made for Linux (ext4, xfs).",
        )
    return None


CHECK = Check(
    id="filesystem",
    title="Output filesystem suitable",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="A mount that hangs will hang the run.",
    silence_todo="Look at the mount that holds the output folder.",
)
