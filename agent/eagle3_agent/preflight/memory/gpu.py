"""Check ``gpu-memory``: will the model, its cache and the captured states fit, with the sum shown.

Nothing is loaded.  A sum that even its least terms exceed blocks; one that only the allowances
exceed warns.  Where the run computes on the CPU, ``on_host`` judges.
"""

from __future__ import annotations

from dataclasses import replace

from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.gpus.gpu_facts import CLEAN_LIMIT
from eagle3_agent.preflight.gpus.used import numbers
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import number, plural, show, size
from eagle3_agent.protocol.values import EngineName, Gpu, Profile, Verdict

from . import checkpoint, host_probe, on_host
from .demand import Demand, demand
from .fit import OVERHEAD, Case, Fit, Room, divides, fits, least_ranks, way_out
from .sharding import Span

_WHY = {
    "start": "vLLM refuses at start when less is free than the share that it is to have.",
    "share": 'The load would end in CUDA out of memory, or in "No available memory for the '
    'cache blocks" once it is done.',
    "beside": "vLLM's cache takes all of its share; the states of a step must fit beside it, and "
    "their buffer is made after the load.",
}
_NOT_KNOWN = "Whether the model fits shows only in the load."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(checkpoint.PROBE)
    name = engine.resolve(facts, profile)
    if seen.problem or not seen.groups or not seen.decoder.layers:
        words = show(seen.problem) or "config.json does not say how many layers the model has"
        return CHECK.verdict(
            "warn", f"cannot tell: {words}", _NOT_KNOWN, "See the check of the model folder."
        )
    interpreter = facts.maybe(interpreter_facts.PROBE)
    dists = interpreter.dists if interpreter is not None else {}
    if name == "transformers" or engine.is_cpu_build(dists):
        rooms = _rooms(facts, profile)[0] if name == "transformers" else ()
        version = dists.get(engine.vllm_dist(dists), "")
        host = facts.maybe(host_probe.PROBE)
        memory = host.memory if host is not None else None
        return on_host.judge(CHECK, on_host.Case(seen, profile, name, memory, rooms, version))
    return _judge_gpus(facts, profile, "vllm" if name == "auto" else name)


def _judge_gpus(facts: Facts, profile: Profile, name: EngineName) -> Verdict:
    seen = facts.get(checkpoint.PROBE)
    ranks = profile.model.tensor_parallel_size
    asked = demand(seen, profile, name)
    rooms, problem = _rooms(facts, profile)
    if not divides(seen, ranks):
        heads, kv = seen.decoder.heads, seen.decoder.kv_heads
        good = [n for n in range(1, max(ranks, len(rooms)) + 1) if divides(seen, n)]
        return CHECK.verdict(
            "block",
            f"{heads} attention heads ({kv} of keys and values) on {plural(ranks, 'rank')}",
            "vLLM gives every rank the same number of heads and refuses others.",
            f"Set model.tensor_parallel_size to one of {', '.join(map(str, good[-6:]))}.",
        )
    if len(rooms) < ranks:
        judged = f"{plural(len(rooms), 'GPU')} of {ranks} can be judged"
        saw = f"{problem or judged}\n"
        return CHECK.verdict(
            "warn",
            f"{saw}the run asks for {_sum(asked)} on each of {plural(ranks, 'GPU')}",
            _NOT_KNOWN,
            "Compare it with what nvidia-smi says is free.",
        )
    case = Case(seen, profile, name, rooms)
    found = fits(asked, rooms[:ranks], profile.model.gpu_memory_utilization)
    if found.status == "pass":
        return _passed(asked, rooms[:ranks], profile, seen)
    return _tight(case, asked, found)


def _rooms(facts: Facts, profile: Profile) -> tuple[tuple[Room, ...], str]:
    """(what the GPUs that the run sees have, why the rest cannot be judged)."""
    found = facts.maybe(gpu_facts.PROBE)
    if found is None:
        return (), "NVML did not answer"
    gpus = gpu_facts.select(found.visible, found.sample.gpus, found.health).gpus
    if not gpus:
        return (), show(found.sample.gpu_problem) or "no GPU that the run would see"
    rooms: list[Room] = []
    for gpu in gpus:
        room = _room(gpu)
        if room is None:
            return tuple(rooms), f"GPU {gpu.index} does not say how much memory it has and uses"
        rooms.append(room)
    return tuple(rooms), ""


def _room(gpu: Gpu) -> Room | None:
    if gpu.memory_total is None or gpu.memory_used is None or gpu.memory_total <= 0:
        return None
    return Room(gpu.index, gpu.memory_total, gpu.memory_used)


def _passed(
    asked: Demand, rooms: tuple[Room, ...], profile: Profile, seen: checkpoint.CheckpointFacts
) -> Verdict:
    share = profile.model.gpu_memory_utilization
    room = min(rooms, key=lambda r: r.beside(share))
    saw = (
        f"{_sum(asked)} of {size(room.share(share))} ({share:g} of {size(room.total)}) "
        f"on each of {plural(len(rooms), 'GPU')}; states {span(asked.states)} "
        f"of {size(room.beside(share))} beside it"
    )
    if seen.unread:
        return CHECK.verdict(
            "warn",
            f"{saw}; {plural(seen.unread, 'file')} of {seen.files} could not be read",
            "The sum lacks their tensors.",
            "See the check of the model folder.",
        )
    return CHECK.verdict("pass", saw)


def _tight(case: Case, asked: Demand, found: Fit) -> Verdict:
    assert found.room is not None
    lines = [_head(found.room, case.profile)]
    if found.place == "start" and _free_first(case, asked):
        lines.append(f"without what others hold it would fit: {_sum(asked)}")
    else:
        lines += [*_terms(case, asked), *_beside(found.room, asked, case.profile)]
    may = "may not fit" if found.status == "warn" else "does not fit"
    lines[0] = f"{may}: {lines[0]}"
    return CHECK.verdict(
        found.status, "\n".join(lines), _WHY[found.place], _todo(case, asked, found)
    )


def _head(room: Room, profile: Profile) -> str:
    share = profile.model.gpu_memory_utilization
    used = f", {size(room.used)} of it in use" if room.used else ""
    return (
        f"GPU {room.index} has {size(room.total)}{used}; "
        f"{share:g} of it for vLLM is {size(room.share(share))}"
    )


def _terms(case: Case, asked: Demand) -> list[str]:
    decoder = case.seen.decoder
    packed = f"{show(decoder.quantization, 40)}, the rest as " if decoder.quantization else "as "
    name = show(decoder.architecture, 60) or "this architecture"
    doubt = "" if asked.known else f"; how {name} is split is not known here"
    return [
        f"weights {span(asked.weights)} ({packed}{asked.dtype}{doubt})",
        f"+ KV cache {span(asked.cache)} (one request of {number(asked.length)} tokens)",
        f"+ work of a forward {span(asked.work)} (an allowance)",
        f"= {span(asked.within)}",
    ]


def _beside(room: Room, asked: Demand, profile: Profile) -> list[str]:
    left = room.beside(profile.model.gpu_memory_utilization)
    have = size(left) if left >= 0 else f"{size(-left)} too little"
    layers = plural(len(profile.capture.layers), "layer")
    return [
        f"beside the share {have}, for CUDA and the driver ({size(OVERHEAD)} on an H200)",
        f"+ states of a step {span(asked.states)} ({number(asked.tokens)} tokens x {layers})",
    ]


def _todo(case: Case, asked: Demand, found: Fit) -> str:
    change = way_out(case)
    free = _free_first(case, asked)
    if change is not None and (change.status == "pass" or found.status == "block"):
        end = "" if change.status == "pass" else ", which may be enough"
        return f"{f'{free}, or set' if free else 'Set'} {change.words}{end}."
    if free:
        return f"{free}."
    if found.status == "warn":
        return "Watch the load; if it fails, lower engine.max_num_batched_tokens."
    least = least_ranks(case)
    have = plural(len(case.rooms), "GPU")
    if least is None or least <= len(case.rooms):
        return "No setting helps on these GPUs: free what others use, or take a smaller model."
    return f"It takes {least} GPUs like this one, the run sees {have}: use a larger host."


def _free_first(case: Case, asked: Demand) -> str:
    """What to do first where the run would fit if nobody else used its GPUs; empty otherwise."""
    ranks, share = (
        case.profile.model.tensor_parallel_size,
        case.profile.model.gpu_memory_utilization,
    )
    alone = fits(asked, tuple(replace(r, used=0) for r in case.rooms[:ranks]), share)
    held = [r.index for r in case.rooms[:ranks] if r.used > CLEAN_LIMIT]
    if alone.status != "pass" or not held:
        return ""
    return f"Free GPU {numbers(held)} (see gpu-clean): it fits then"


def _sum(asked: Demand) -> str:
    return (
        f"weights {span(asked.weights)} + KV cache {span(asked.cache)} + work "
        f"{span(asked.work)} = {span(asked.within)}"
    )


def span(value: Span) -> str:
    """``15.0 GiB``, ``at most 1.2 GiB``, ``0.3 GiB to 0.5 GiB``."""
    if size(value.least) == size(value.most):
        return size(value.most)
    return (
        f"at most {size(value.most)}"
        if not value.least
        else (f"{size(value.least)} to {size(value.most)}")
    )


CHECK = Check(
    id="gpu-memory",
    title="Model and states fit in memory",
    needs=(checkpoint.PROBE,),
    wants=(gpu_facts.PROBE, interpreter_facts.PROBE, host_probe.PROBE),
    judge=judge,
    silence="warn",
    silence_why=_NOT_KNOWN,
    silence_todo="Try ls on the model folder: a network disk that hangs stops the load too.",
)
