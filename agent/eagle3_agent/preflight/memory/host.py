"""Check ``host-memory``: the pinned buffer, the processes and what else a run keeps on the host.

The rows of the data are read as they are needed and kept on the disk once tokenised: they are
no term of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import checkpoint
from .demand import run_dtype
from .host_facts import HostFacts
from .host_probe import PROBE
from .sharding import Split, item_size, weights

_GIB = 1024**3

#: The worker's own choice where ``output.buffer`` is not given (``worker/writing/bounds.py``).
_BUFFER_MOST, _BUFFER_SHARE = 8 * _GIB, 8

#: Resident memory of a process with vLLM 0.16 and torch in it: 2,007 MB after 20,000 samples of a
#: tiny model on the CPU.
PROCESS = 2 * _GIB

#: Of the swap, from which on its use is worth a word.
_SWAPPED = 0.5


@dataclass(frozen=True)
class _Terms:
    """Bytes of host memory."""

    buffer: int
    given: bool
    """The profile names the buffer; it is not the worker's choice."""
    processes: int
    """How many hold torch."""
    model: int
    """Weights that lie in host memory; 0 where a GPU holds them."""

    @property
    def most(self) -> int:
        return self.buffer + self.processes * PROCESS + self.model


def judge(facts: Facts, profile: Profile) -> Verdict:
    host = facts.get(PROBE).memory
    free = host.free
    if free is None:
        return CHECK.verdict(
            "warn",
            "cannot tell: neither /proc/meminfo nor a cgroup says how much memory is free",
            _WHY,
            "Look with free -h.",
        )
    terms = _terms(facts, profile, free)
    saw = f"{_need(terms)} of {size(free)} free{_bound(host)}"
    if terms.buffer + terms.model > free:
        return CHECK.verdict("block", saw, _WHY, _less(terms, free))
    if host.strict and host.commit_left is not None and terms.buffer > host.commit_left:
        return CHECK.verdict(
            "block",
            f"{saw}; vm.overcommit_memory is 2, {size(max(0, host.commit_left))} left to commit",
            "The kernel refuses to reserve more than its commit limit, free or not.",
            "Lower output.buffer, or ask the administrator for vm.overcommit_memory = 0.",
        )
    if terms.most > free:
        return CHECK.verdict("warn", saw, _WHY, _less(terms, free))
    return _judge_pressure(host, saw, facts)


def _judge_pressure(host: HostFacts, saw: str, facts: Facts) -> Verdict:
    swap, left = host.swap_total or 0, host.swap_free
    if swap and left is not None and swap - left > _SWAPPED * swap:
        return CHECK.verdict(
            "warn",
            f"{saw}; {size(swap - left)} of {size(swap)} swap in use",
            "The host has been short of memory; pinned memory cannot be swapped, and takes "
            "more from the others.",
            "See who takes it (ps aux --sort=-rss | head), or lower output.buffer.",
        )
    return CHECK.verdict("pass", saw + _cached(host, facts))


def _terms(facts: Facts, profile: Profile, free: int) -> _Terms:
    seen = facts.maybe(checkpoint.PROBE)
    interpreter = facts.maybe(interpreter_facts.PROBE)
    name = engine.resolve(facts, profile)
    ranks = profile.model.tensor_parallel_size
    here = name == "transformers" or engine.is_cpu_build(interpreter.dists if interpreter else {})
    model = 0
    if here and seen is not None and not seen.problem:
        shared = 1 if name == "transformers" else ranks
        dtype = run_dtype(profile, seen.decoder, seen.groups)
        model = shared * weights(seen.groups, Split(seen.decoder, shared, dtype)).least
    return _Terms(
        buffer=0 if name == "transformers" else buffer_bytes(profile, seen, free),
        given=profile.output.buffer_bytes is not None,
        processes=engine.processes(name, ranks),
        model=model,
    )


def buffer_bytes(profile: Profile, seen: checkpoint.CheckpointFacts | None, free: int) -> int:
    """What the worker will pin: the profile's bytes, or its own choice of what is free."""
    if profile.output.buffer_bytes is not None:
        return profile.output.buffer_bytes
    longest = 0
    if seen is not None:
        dtype = run_dtype(profile, seen.decoder, seen.groups)
        token = len(profile.capture.layers) * seen.decoder.hidden * item_size(dtype)
        longest = min(profile.data.seq_length, profile.model.max_model_len) * token
    return max(min(_BUFFER_MOST, free // _BUFFER_SHARE), 2 * longest)


def _need(terms: _Terms) -> str:
    parts = []
    if terms.buffer:
        whose = "output.buffer" if terms.given else "the worker's buffer"
        parts.append(f"{whose} {size(terms.buffer)}")
    if terms.model:
        parts.append(f"weights {size(terms.model)}")
    parts.append(f"{plural(terms.processes, 'process', 'processes')} x {size(PROCESS)} at most")
    return f"{' + '.join(parts)} = {size(terms.most)}"


def _bound(host: HostFacts) -> str:
    ceiling = host.ceiling
    if ceiling is None or host.free == host.available:
        return ""
    where = show(ceiling.where, 80)
    return f" (the cgroup's limit is {size(ceiling.limit)}, of the host's {_total(host)}: {where})"


def _total(host: HostFacts) -> str:
    return size(host.total) if host.total is not None else "unknown memory"


def _less(terms: _Terms, free: int) -> str:
    room = free - terms.model - terms.processes * PROCESS
    if terms.buffer and room >= 256 * 1024**2 and room < terms.buffer:
        return f'Set output.buffer = "{room // 1024**2}MiB", or free memory on the host.'
    return "Free memory on the host, or raise the container's limit."


def _cached(host: HostFacts, facts: Facts) -> str:
    """A checkpoint that the page cache cannot keep is read from the disk at every start."""
    seen = facts.maybe(checkpoint.PROBE)
    stored = sum(g.bytes * g.count for g in seen.groups) if seen is not None else 0
    if host.available is None or stored <= host.available:
        return ""
    return f"; the checkpoint ({size(stored)}) does not stay in the page cache: each load reads it"


_WHY = (
    "The kernel ends a process that takes more memory than there is, hours into a run and "
    "without a traceback."
)

CHECK = Check(
    id="host-memory",
    title="Host memory large enough",
    needs=(PROBE,),
    wants=(checkpoint.PROBE, interpreter_facts.PROBE),
    judge=judge,
    silence="warn",
    silence_why=_WHY,
    silence_todo="Look with free -h.",
)
