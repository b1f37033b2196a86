"""Known failures of disks, files and the checkpoint's shards; pure."""

from __future__ import annotations

from .kinds import Known, known

KNOWN: tuple[Known, ...] = (
    # ------------------------------------------------------------- disk and files
    known(
        "disk-full",
        r"No space left on device|Errno 28\b|no space left on ",
        "The disk is full; samples that were finished stay valid.",
        "Free space, then resume the run: it goes on where it stopped.",
    ),
    known(
        "quota",
        r"Disk quota exceeded|Errno 122\b",
        "The user's quota on that disk is used up; finished samples stay valid.",
        "Free space or raise the quota, then resume.",
    ),
    known(
        "read-only",
        r"Read-only file system|Errno 30\b",
        "The disk is mounted read-only; after a disk error the kernel does that by itself.",
        "Look in dmesg, then choose another output.dir or have it mounted again, and resume.",
    ),
    known(
        "disk-error",
        r"Input/output error|Stale file handle|Errno (?:5|116|121)\b",
        "A disk or its server failed while a file was read or written.",
        "Look in dmesg and at the mount; resume once it is well.",
    ),
    known(
        "shard-broken",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader",
        "A shard of the checkpoint is cut off or is not safetensors.",
        "The preflight's check of the model names the file; copy it again.",
    ),
    known(
        "shard-missing",
        r"No such file or directory.{0,300}\.safetensors|Cannot find any model weights"
        r"|does not appear to have a file named"
        r"|referenced in index but missing",
        "A file of the checkpoint is not there.",
        "The preflight's check of the model names it; copy it again.",
    ),
    known(
        "open-files",
        r"Too many open files|Errno 24\b",
        "The limit of open files is too low for this many ranks and shards.",
        "Raise it before the agent starts: ulimit -n 65536, or LimitNOFILE of its service.",
    ),
    known(
        "permission",
        r"PermissionError|Errno 13\b",
        "The user that runs the worker may not read or write that file.",
        "Give it the right to, or choose another path.",
    ),
)
