"""``gpu-memory`` where host memory holds the model: vLLM's CPU build, and transformers; pure.

vLLM's cache on the CPU (read in its sources): 0.16 ``platforms/cpu.py`` takes
``VLLM_CPU_KVCACHE_SPACE`` GiB, or half of a NUMA node's memory; 0.32 ``v1/worker/cpu_worker.py``
wants ``gpu_memory_utilization`` of a node's memory to be free at start.  Either is only touched
as it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight.check import Check
from eagle3_agent.preflight.engine import version_key
from eagle3_agent.preflight.text import number, plural, size
from eagle3_agent.protocol.values import EngineName, Profile, Verdict

from .checkpoint import CheckpointFacts
from .demand import CPU_BLOCK, Demand, demand, run_dtype
from .fit import Room
from .host_facts import HostFacts
from .sharding import Split, weights

_GIB = 1024**3

#: The releases whose rule was read: up to here half of a node, from there the share.
_HALF_UNTIL = (0, 17)
_SHARE_SINCE = (0, 32)

#: What the engine wants free on a GPU, of the model's size (``worker/engines/transformers.py``).
_ON_GPU = 1.2

_KILLED = "The kernel ends a process that takes more memory than there is, without a traceback."


@dataclass(frozen=True)
class Case:
    seen: CheckpointFacts
    profile: Profile
    engine: EngineName
    host: HostFacts | None
    rooms: tuple[Room, ...]
    version: str
    """Of vLLM."""


def judge(check: Check, case: Case) -> Verdict:
    host = case.host
    if host is None or host.free is None:
        return check.verdict(
            "warn",
            "cannot tell: how much host memory is free is not known",
            _KILLED,
            "Look with free -h.",
        )
    if case.engine == "transformers":
        return _transformers(check, case, host.free)
    return _cpu_build(check, case, host, host.free)


# --------------------------------------------------------------------------- transformers


def _transformers(check: Check, case: Case, free: int) -> Verdict:
    decoder = case.seen.decoder
    dtype = run_dtype(case.profile, decoder, case.seen.groups)
    need = weights(case.seen.groups, Split(decoder, 1, dtype)).most
    saw = f"weights {size(need)} as {dtype}; {size(free)} of host memory free"
    if need > free:
        return check.verdict(
            "block",
            saw,
            f"transformers loads the whole model into host memory first. {_KILLED}",
            'Set engine.name = "vllm", which shards the load, or free memory on the host.',
        )
    if decoder.quantization:
        return check.verdict(
            "warn",
            f"{saw}; the checkpoint is packed ({decoder.quantization})",
            "Whether transformers keeps it packed or unpacks it to a multiple of that depends on "
            "what is installed.",
            'Prefer engine.name = "vllm" for a quantised checkpoint.',
        )
    best = max(case.rooms, key=lambda r: r.total - r.used, default=None)
    if best is None:
        return check.verdict("pass", f"{saw}; it computes on the CPU")
    left = best.total - best.used
    if need * _ON_GPU < left:
        return check.verdict("pass", f"{saw}; GPU {best.index} has {size(left)} free for it")
    return check.verdict(
        "warn",
        f"{saw}; GPU {best.index}, the emptiest, has {size(left)} free and it takes "
        f"{size(need * _ON_GPU)} (1.2 of the weights)",
        "The engine then computes on the CPU, hundreds of times slower.",
        'Set engine.name = "vllm" with model.tensor_parallel_size, or free the GPU.',
    )


# --------------------------------------------------------------------------- vLLM's CPU build


def _cpu_build(check: Check, case: Case, host: HostFacts, free: int) -> Verdict:
    name: EngineName = "vllm" if case.engine == "auto" else case.engine
    asked = demand(case.seen, case.profile, name, CPU_BLOCK)
    ranks = asked.ranks
    need = ranks * (asked.weights.least + asked.states.least)
    saw = (
        f"{plural(ranks, 'rank')} on the CPU x (weights {size(asked.weights.most)} as "
        f"{asked.dtype} + states {size(asked.states.most)}) = "
        f"{size(ranks * (asked.weights.most + asked.states.most))} of {size(free)} free"
    )
    if need > free:
        return check.verdict(
            "block",
            saw,
            _KILLED,
            "Free memory on the host, take a smaller model, or lower "
            "engine.max_num_batched_tokens.",
        )
    return _cache(check, case, host, asked, saw)


def _cache(check: Check, case: Case, host: HostFacts, asked: Demand, saw: str) -> Verdict:
    given, words = _cache_space(case, host)
    if given is None:
        return check.verdict("pass", f"{saw}; {words}")
    by_share = version_key(case.version) >= _SHARE_SINCE and host.kv_space is None
    saw = f"{saw}; KV cache {size(given)} a rank ({words})"
    if given - (asked.weights.least if by_share else 0) < asked.cache.least:
        least = -(-asked.cache.least // _GIB)
        return check.verdict(
            "block",
            f"{saw}, one request of {number(asked.length)} tokens needs {size(asked.cache.least)}",
            "vLLM refuses to start when the longest request does not fit into its cache.",
            f'Set VLLM_CPU_KVCACHE_SPACE = "{least}" in host.env, or lower model.max_model_len.',
        )
    free = host.free or 0
    most = given if by_share else asked.ranks * (given + asked.weights.most + asked.states.most)
    if most <= free:
        return check.verdict("pass", saw)
    if by_share:
        total = max(1, (host.total or 0) // host.nodes)
        share = max(0.01, int(free / total * 100 - 1) / 100)
        return check.verdict(
            "block",
            saw,
            "This vLLM refuses to start when less than gpu_memory_utilization of a node's memory "
            "is free, on the CPU too.",
            f"Set model.gpu_memory_utilization = {share:g}, or free memory on the host.",
        )
    return check.verdict(
        "warn",
        f"{saw}: together more than is free",
        "The cache is reserved at once and taken as it is used: the run may be killed late.",
        f'Set VLLM_CPU_KVCACHE_SPACE = "{max(1, -(-asked.cache.most // _GIB))}" in host.env.',
    )


def _cache_space(case: Case, host: HostFacts) -> tuple[int | None, str]:
    """(bytes of a rank's cache, where that comes from); None where it cannot be told."""
    if host.kv_space is not None:
        if not host.kv_space.strip().isdecimal():
            return None, "VLLM_CPU_KVCACHE_SPACE is not a number of GiB"
        return int(host.kv_space[:9]) * _GIB, f"VLLM_CPU_KVCACHE_SPACE={host.kv_space[:9]}"
    if host.total is None:
        return None, "the size of the KV cache cannot be told"
    node = host.total // host.nodes
    key = version_key(case.version)
    if key and key < _HALF_UNTIL:
        return node // 2, "half of a NUMA node's memory"
    if key >= _SHARE_SINCE:
        share = case.profile.model.gpu_memory_utilization
        return int(node * share), f"{share:g} of a NUMA node's memory, weights included"
    return None, f"how vLLM {case.version or 'here'} sizes its cache on the CPU is not known"
