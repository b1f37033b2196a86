"""Known failures of processes that end; pure."""

from __future__ import annotations

from .kinds import Known, known

KNOWN: tuple[Known, ...] = (
    # ------------------------------------------------------------- processes that end
    known(
        "host-memory",
        r"for lack of memory|OOM[-_ ]?kill|Out Of Memory$|Cannot allocate memory|Errno 12\b"
        r"|^MemoryError",
        "The host's memory ran out and the kernel ended a process.",
        "Lower output.buffer; look for what else holds memory on the host.",
    ),
    known(
        "bus-error",
        r"^(?:Fatal Python error: )?Bus error|SIGBUS",
        "Memory that was mapped could not be had: mostly /dev/shm is full.",
        "Give the container more /dev/shm, and remove stale files there.",
    ),
    known(
        "segfault",
        r"^(?:Fatal Python error: )?Segmentation fault|SIGSEGV",
        "Compiled code crashed; the frame shown is the last Python one.",
        "Try another attention backend or version; look for Xid in the preflight.",
    ),
    known(
        "killed",
        r"^Killed\b|SIGKILL|died unexpectedly",
        "A process was killed from outside: by the kernel for lack of memory, a job's limits, "
        "or somebody.",
        "Look in dmesg for oom-kill, and at the job's memory limit.",
    ),
    known(
        "rank-hang",
        r"RPC call to \w+ timed out|execute_model timed out|TimeoutError.{0,100}execute_model",
        "A rank did not answer in time: it hangs or is far slower than the others.",
        "See which rank's last line is oldest; run the deep preflight on these GPUs.",
    ),
)
