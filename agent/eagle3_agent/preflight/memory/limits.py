"""Check ``limits``: open files, threads, locked memory and core files that the worker will have.

The worker is the agent's child, so the agent's limits are its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, number, show, size
from eagle3_agent.protocol.values import Profile, Status, Verdict

from .host_probe import PROBE
from .limits_facts import Limit, LimitsFacts

#: Files that a worker of two ranks had open, vLLM 0.16 and 0.32 on the CPU: 107 to 117.  CUDA and
#: NCCL open more, some for each GPU; what Linux gives by default has been enough.
_FILES_LEAST, _FILES_USUAL = 128, 1024
#: Threads of a worker of two ranks with one thread for its products: 49 to 55.
_THREADS_LEAST = 55
#: Bytes of a core file from which on it is a matter for the disk.
_CORE_SMALL = 1024**3
#: Bytes of locked memory that InfiniBand's registrations pass easily.
_LOCKED_ENOUGH = 1024**3

_RESTART = "log in anew and run eagle3-console agent stop, so that the next agent has it"


@dataclass(frozen=True)
class _Finding:
    status: Status
    saw: str
    why: str
    todo: str


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE).limits
    name = engine.resolve(facts, profile)
    ranks = 1 if name == "transformers" else profile.model.tensor_parallel_size
    found = [
        _files(seen.files),
        _threads(seen, engine.processes(name, ranks)),
        _core(seen),
        _locked(seen, ranks),
    ]
    bad = [f for f in found if f.status != "pass"]
    bad.sort(key=lambda f: f.status != "block")
    if not bad:
        return CHECK.verdict("pass", "; ".join(f.saw for f in found if f.saw))
    return CHECK.verdict(
        bad[0].status,
        "\n".join(f.saw for f in bad),
        " ".join(f.why for f in bad),
        " ".join(f.todo for f in bad),
    )


def _files(limit: Limit) -> _Finding:
    soft = limit.soft
    hard = _shown(limit.hard)
    if soft is None or soft >= _FILES_USUAL:
        return _Finding("pass", f"{_shown(soft)} open files", "", "")
    raised = (
        f"Set ulimit -n {min(65536, limit.hard or 65536)} in the shell's start file, "
        f"then {_RESTART}."
        if limit.hard is None or limit.hard > soft
        else f"Raise nofile in /etc/security/limits.d (the hard limit is {hard}), then {_RESTART}."
    )
    return _Finding(
        "block" if soft < _FILES_LEAST else "warn",
        f"{number(soft)} open files (hard limit {hard})",
        f"A rank of vLLM alone has some {_FILES_LEAST} files open, more with CUDA; then comes "
        '"Too many open files".',
        raised,
    )


def _threads(seen: LimitsFacts, processes: int) -> _Finding:
    """Headroom of the user's limit (root has none) and of the cgroup's."""
    least = processes * _THREADS_LEAST
    most = processes * (_THREADS_LEAST + seen.cores)
    rooms = []
    if seen.processes.soft is not None and seen.uid != 0:
        limit = seen.processes.soft
        rooms.append((limit - seen.threads, f"{number(limit)} by ulimit -u"))
    if seen.pids is not None:
        where = show(f"{seen.pids.where}/pids.max", 80)
        rooms.append((seen.pids.limit - seen.pids.used, f"{number(seen.pids.limit)} by {where}"))
    if not rooms:
        return _Finding("pass", "threads without a limit", "", "")
    left, words = min(rooms)
    if left >= most:
        return _Finding("pass", f"{number(left)} threads to start", "", "")
    return _Finding(
        "block" if left < least else "warn",
        f"{number(max(0, left))} threads left of {words}; the run starts {number(least)} to "
        f"{number(most)}",
        'A thread that cannot be started fails as "Resource temporarily unavailable" or '
        '"can\'t start new thread".',
        "Raise nproc in /etc/security/limits.d or the container's --pids-limit, or set "
        'OMP_NUM_THREADS = "1" in host.env.',
    )


def _core(seen: LimitsFacts) -> _Finding:
    limit = seen.core.soft
    piped = seen.core_pattern.startswith("|")
    if piped or not seen.core_pattern or (limit is not None and limit <= _CORE_SMALL):
        how = "to a handler" if piped else "off" if limit == 0 else f"up to {_bytes(limit)}"
        return _Finding("pass", f"core files {how}" if seen.core_pattern else "", "", "")
    large = "without a limit" if limit is None else f"of up to {size(limit)}"
    folder = seen.core_pattern.rpartition("/")[0] or "the run's folder"
    return _Finding(
        "warn",
        f"core files {large}, written to {show(folder, 80)} "
        f"(core_pattern {show(seen.core_pattern, 60)})",
        "A worker that crashes writes its whole host memory there, pinned buffer included, and "
        "can fill that disk.",
        f"Set ulimit -c 0 in the shell's start file, then {_RESTART}.",
    )


def _locked(seen: LimitsFacts, ranks: int) -> _Finding:
    soft = seen.locked.soft
    if soft is None or soft >= _LOCKED_ENOUGH or seen.uid == 0:
        return _Finding("pass", f"{_bytes(soft)} of locked memory", "", "")
    if ranks == 1 or not seen.infiniband:
        # CUDA's driver pins the buffer by itself; this limit is for mlock and for verbs
        return _Finding(
            "pass", f"{_bytes(soft)} of locked memory (no InfiniBand asks for it)", "", ""
        )
    return _Finding(
        "warn",
        f"{_bytes(soft)} of locked memory, with InfiniBand "
        f"({listed([show(n, 20) for n in seen.infiniband], 3)})",
        "Where NCCL takes InfiniBand, registering its buffers fails beyond it "
        '("ibv_reg_mr failed", "unhandled system error"). Within one host it takes NVLink, PCIe '
        "or shared memory.",
        "Set memlock unlimited in /etc/security/limits.d (a container: --ulimit memlock=-1), or "
        'NCCL_IB_DISABLE = "1" in host.env.',
    )


def _shown(count: int | None) -> str:
    return "unlimited" if count is None else number(count)


def _bytes(count: int | None) -> str:
    return "unlimited" if count is None else size(count)


CHECK = Check(
    id="limits",
    title="Process limits high enough",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why="A limit that is too low fails in the load or hours later, as an error of its own.",
    silence_todo="Look with ulimit -a.",
)
