"""Which GPUs an exercise may use: the run's own, and only where nobody else is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from eagle3_agent import archive, processes, runs
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Ask
from eagle3_agent.preflight.gpus import gpu_facts
from eagle3_agent.preflight.gpus.gpu_facts import CLEAN_LIMIT, VISIBLE
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.libraries.interpreter_facts import InterpreterFacts
from eagle3_agent.preflight.text import listed, plural, show, size
from eagle3_agent.processes import Identity
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.values import EngineName, Gpu, Profile

from . import exercise
from .keeper import Keeper

#: Seconds between two looks at the list of runs.
_RUNS_EVERY = 2.0


@dataclass(frozen=True)
class Aim:
    """What an exercise is pointed at."""

    engine: EngineName
    ranks: int
    """Processes of the model that the run will have."""
    gpus: tuple[Gpu, ...] = ()
    """The run's, in the order of its ranks, those that can be exercised."""
    refused: str = ""
    """Why none of them is exercised; empty when some are."""
    left_out: tuple[str, ...] = ()
    """A line for each of the run's GPUs that is not exercised."""
    cpu: bool = False
    """The run computes on the CPU."""
    nothing: bool = False
    """There is no GPU to wait for."""

    @property
    def whole(self) -> bool:
        """Every rank of the run has its GPU here."""
        return len(self.gpus) == self.ranks and not self.left_out

    @property
    def uuids(self) -> str:
        return ",".join(gpu.uuid for gpu in self.gpus)


@contextmanager
def in_turn(keeper: Keeper, ask: Ask, least: int = 1) -> Iterator[Aim]:
    """What to exercise, while no other exercise has the GPUs.

    Where there is none, or the run has fewer ranks than ``least``, nothing is waited for.
    """
    first = take(ask)
    if first.nothing or first.ranks < least:
        yield first
        return
    with keeper.turn(exercise.TURN):
        found = take(ask)
        keeper.disturbed = Watch(found)
        yield found


def take(ask: Ask) -> Aim:
    """Looks at the GPUs and the living runs now; call it in the exercise's own turn."""
    profile = ask.profile
    seen = interpreter_facts.ask(profile)
    chosen = engine.choose(profile.engine.name, seen)
    ranks = profile.model.tensor_parallel_size if chosen in engine.ON_VLLM else 1
    if seen.problem:
        why = f"the interpreter {show(seen.path)} {show(seen.problem)}: nothing can be exercised"
        return Aim(chosen, ranks, refused=why, nothing=True)
    return _aim(profile, seen, chosen, ranks, gpu_facts.PROBE.collect(ask))


def _aim(
    profile: Profile,
    seen: InterpreterFacts,
    chosen: EngineName,
    ranks: int,
    facts: gpu_facts.GpuFacts,
) -> Aim:
    selected = gpu_facts.select(facts.visible, facts.sample.gpus, facts.health).gpus
    if chosen in engine.ON_VLLM and engine.is_cpu_build(seen.dists):
        why = "no GPU: this vLLM computes on the CPU"
        return Aim(chosen, ranks, refused=why, cpu=True, nothing=True)
    if not selected:
        why = show(facts.sample.gpu_problem) or f"{VISIBLE} leaves none"
        why, on_cpu = f"no GPU: {why}", chosen == "transformers"
        return Aim(chosen, ranks, refused=why, cpu=on_cpu, nothing=True)
    return judge(chosen, ranks, selected, claimed())


def judge(
    chosen: EngineName, ranks: int, selected: tuple[Gpu, ...], claims: Mapping[str, str]
) -> Aim:
    """Of the GPUs that the run sees, those to exercise; pure.  ``claims`` as ``claimed`` has it."""
    wanted = selected[:ranks]
    if chosen == "transformers":  # it takes the GPU with most free memory
        wanted = tuple(sorted(selected, key=_free, reverse=True)[:1])
    left_out = [(gpu, why) for gpu in wanted if (why := _why_not(gpu, claims))]
    free = tuple(g for g in wanted if not any(g is out for out, _ in left_out))
    told = tuple(f"GPU {gpu.index} {why}" for gpu, why in left_out)
    if not free:
        return Aim(chosen, ranks, refused=listed(told, 4), left_out=told)
    return Aim(chosen, ranks, free, left_out=told)


def _free(gpu: Gpu) -> int:
    return (gpu.memory_total or 0) - (gpu.memory_used or 0)


def _why_not(gpu: Gpu, claims: Mapping[str, str]) -> str:
    if gpu.error:
        return f"cannot be read: {show(gpu.error, 100)}"
    run = claims.get(f"gpu:{gpu.uuid or gpu.index}") or claims.get("gpu:*")
    if run:
        return f"belongs to run {show(run, 40)}, which goes on"
    if not gpu.uuid:
        return "has no UUID that it could be named by"
    held = [p for p in gpu.processes if p.bytes is None or p.bytes > CLEAN_LIMIT]
    if held:
        first = held[0]
        name = f" ({show(first.command, 60)})" if first.command else ""
        return f"is in use by {plural(len(held), 'process', 'processes')}: pid {first.pid}{name}"
    if gpu.memory_used is not None and gpu.memory_used > CLEAN_LIMIT:
        return f"is in use: {size(gpu.memory_used)} are held by processes that cannot be seen"
    return ""


def claimed() -> dict[str, str]:
    """What the living runs of this home claim on this host -> the run's id."""
    found: dict[str, str] = {}
    boot = processes.boot_id()
    for folder in runs.list_folders():
        if (folder.path / "exit.json").exists():
            continue
        guardian = folder.guardian()
        if guardian is None or guardian.boot_id != boot:
            continue
        if not processes.alive(Identity(guardian.pid, guardian.start_time)):
            continue
        try:
            record = folder.record()
        except (OSError, ProtocolError):
            continue
        found.update(dict.fromkeys(record.claims, record.run))
    return found


class Watch:
    """Why an exercise on ``aim`` must end now: a run that began meanwhile."""

    def __init__(self, aim: Aim) -> None:
        self._wanted = {f"gpu:{gpu.uuid}" for gpu in aim.gpus} | {"gpu:*"}
        self._looked = time.monotonic()

    def __call__(self) -> str:
        if time.monotonic() - self._looked < _RUNS_EVERY:
            return ""
        self._looked = time.monotonic()
        claims = claimed()
        run = next((claims[c] for c in self._wanted if c in claims), "")
        return f"run {run} began meanwhile and has these GPUs" if run else ""


def environment(profile: Profile, uuids: str | None) -> dict[str, str]:
    """The worker's environment, with these GPUs in sight and nothing of torchrun's.

    None leaves the run's own choice as it is, and numbers GPUs as NVML does: vLLM 0.16
    takes no UUID there (its platforms/interface.py makes an int of each entry).
    """
    env = interpreter_facts.worker_env(profile)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    old = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{archive.ROOT}{os.pathsep}{old}" if old else str(archive.ROOT)
    if uuids is None:
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    else:
        env[VISIBLE] = uuids
    return env
