"""Check ``shm``: room in /dev/shm for several ranks, and what dead processes left there.

vLLM 0.16 and 0.32 (``v1/executor/multiproc_executor.py``, ``shm_broadcast.py``): between ranks it
makes a queue of 10 chunks of ``VLLM_MQ_MAX_CHUNK_BYTES_MB`` (16) MiB, one of 10 x 24 MiB for each
rank's answers and some of 6 x 4 MiB.  They are sparse: only what is written takes memory.  NCCL
reserves its segments outright (``posix_fallocate``): 5,967,872 and 9,637,888 bytes are those that
its errors name, one a connection.
"""

from __future__ import annotations

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, number, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .shm_facts import FOLDER, PROBE, ShmFacts, ShmFile

_MIB = 1024 * 1024

#: Of NCCL, for each rank: one connection's segment.
SEGMENT = 9_637_888
#: What nobody has been short with; vLLM's manual asks for --ipc=host or a large --shm-size.
_PLENTY = 1024 * _MIB
#: Left behind in all, from which on it is worth a warning.
_STALE = 256 * _MIB
#: Seconds that a file must be untouched, so that a start that goes on is none.
_SETTLED = 60.0

_LARGER = (
    "Start the container with --ipc=host or --shm-size=16g; on a host: "
    f"mount -o remount,size=16G {FOLDER}."
)
_WHY = (
    'NCCL and vLLM meet there; without room the load ends in "unhandled system error" or in '
    "SIGBUS. Docker gives 64 MiB."
)


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    name = engine.resolve(facts, profile)
    ranks = 1 if name == "transformers" else profile.model.tensor_parallel_size
    alone = engine.processes(name, ranks) == 1
    if seen.problem or not seen.writable:
        words = show(seen.problem) or "cannot be written by this user"
        if alone:
            return CHECK.verdict("pass", f"{FOLDER} {words}; one rank does not need it")
        return CHECK.verdict("block", f"{FOLDER} {words}", _WHY, f"mount -t tmpfs tmpfs {FOLDER}")
    saw = f"{size(seen.free)} of {size(seen.total)} free, {plural(ranks, 'rank')}"
    left = _left_behind(seen)
    if alone and seen.stale_bytes < _STALE:
        return CHECK.verdict("pass", f"{saw}{left}")
    least = ranks * SEGMENT if ranks > 1 else _MIB
    if not alone and seen.free < least:
        return CHECK.verdict(
            "block",
            f"{saw}, which with NCCL's segments of {number(SEGMENT)} bytes take "
            f"{size(least)} at least{left}",
            _WHY,
            _LARGER if seen.total < _PLENTY else _remove(seen) or _LARGER,
        )
    if not alone and ranks > 1 and seen.free < _PLENTY:
        return CHECK.verdict("warn", f"{saw}{left}", _WHY, _LARGER)
    if seen.stale_bytes >= _STALE and _old(seen):
        return CHECK.verdict(
            "warn",
            f"{saw}{left}",
            f"What lies in {FOLDER} is host memory until it is removed or the host restarts.",
            _remove(seen),
        )
    return CHECK.verdict("pass", f"{saw}{left}")


def _old(seen: ShmFacts) -> list[ShmFile]:
    return [f for f in seen.stale if f.age > _SETTLED]


def _left_behind(seen: ShmFacts) -> str:
    old = _old(seen)
    if not old:
        return ""
    names = listed([f"{show(f.name, 40)} {size(f.bytes)}" for f in old], 3)
    sure = (
        f"; {plural(seen.unseen, 'process', 'processes')} could not be looked at"
        if seen.unseen
        else ""
    )
    return (
        f"\n{plural(seen.stale_count, 'file')} of {size(seen.stale_bytes)} that no process seen "
        f"holds: {names}{sure}"
    )


def _remove(seen: ShmFacts) -> str:
    """Shared memory that nobody has open now may be opened by its name later: a person decides."""
    old = _old(seen)
    if not old:
        return ""
    return (
        f"If nothing of yours is starting: look with ls -l {FOLDER}, and remove what is of ended "
        "runs."
    )


CHECK = Check(
    id="shm",
    title="Shared memory large enough",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=_WHY,
    silence_todo=f"Look with df -h {FOLDER}.",
)
