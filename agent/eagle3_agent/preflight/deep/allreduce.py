"""Check ``nccl``: a real all-reduce over all ranks of the run, its values and its bandwidth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Check, Facts, Probe, only_deep
from eagle3_agent.preflight.text import listed, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from . import aim, exercise, steps
from .keeper import Ended, Keeper

#: Seconds for all ranks; they start together.
TIMEOUT = 75.0

#: Seconds before that at which torch gives up waiting for a rank, and says so.
_TELLING = 15.0

#: Seconds that the others get once a rank has failed: NCCL tells its own errors in them.
_AFTER_FAILURE = 5.0

#: Bytes a second: a link slower than this is none of NVLink and no healthy PCIe slot either (an
#: x16 slot of generation 3 carries 12 GB/s, and NCCL through host memory still about half).
SLOW = 2e9

#: Only this host takes part, by its loopback; NVLink multicast needs a fabric that not every host
#: has set up, and is none of what the ranks of a run depend on.
_NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN"}

_PHASES = ("start", "open the device", "meet the other ranks", "reduce", "leave", "done")


@dataclass(frozen=True)
class Round:
    bytes: int
    seconds: float
    """Median of one all-reduce."""
    wrong: int
    """Elements whose sum is not exact."""


@dataclass(frozen=True)
class Reported:
    """What ``worker exercise allreduce`` writes for a rank."""

    phase: str = ""
    problem: str = ""
    nccl: str = ""
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True)
class Rank:
    rank: int
    gpu: int
    """Index of its GPU."""
    ended: str
    words: str
    report: Reported = Reported()


@dataclass(frozen=True)
class AllReduceFacts:
    refused: str = ""
    ranks: tuple[Rank, ...] = ()
    warnings: tuple[str, ...] = ()
    """NCCL's own."""
    seconds: float = 0.0


def perform(keeper: Keeper, ask: Ask) -> AllReduceFacts:
    with aim.in_turn(keeper, ask, least=2) as found:
        if found.refused or found.ranks < 2 or not found.whole:
            return AllReduceFacts(_why_not(found))
        env = {**aim.environment(ask.profile, found.uuids), **_NCCL}
        commands = [
            steps.exercise(
                keeper,
                ask.profile,
                "allreduce",
                f"rank{rank}",
                {
                    "device": "cuda",
                    "rank": rank,
                    "ranks": found.ranks,
                    "store": str(keeper.scratch / "store"),
                    "seconds": TIMEOUT - _TELLING,
                },
                env,
                TIMEOUT,
            )
            for rank in range(found.ranks)
        ]
        ended = keeper.run(commands, after_failure=_AFTER_FAILURE)
    return AllReduceFacts(
        ranks=tuple(_rank(keeper, i, found.gpus[i].index, e) for i, e in enumerate(ended)),
        warnings=steps.nccl_warnings(ended),
        seconds=round(max(e.seconds for e in ended), 2),
    )


def _why_not(found: aim.Aim) -> str:
    if found.ranks < 2:
        return "the run has one rank: nothing is reduced"
    if found.refused:
        return found.refused
    if found.left_out:
        return listed(found.left_out, 4)
    return f"{plural(found.ranks, 'rank')} and {plural(len(found.gpus), 'GPU')} in sight"


def _rank(keeper: Keeper, rank: int, gpu: int, ended: Ended) -> Rank:
    report = steps.read(keeper, ended, Reported) or Reported()
    how = steps.how(ended)
    return Rank(rank, gpu, how, " ".join(steps.last_words(ended)) if how else "", report)


# ------------------------------------------------------------------ the verdict


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.refused:
        return CHECK.verdict("skip", f"nothing was exercised: {seen.refused}")
    if any(rank.ended for rank in seen.ranks):
        return _failed(seen, profile)
    saw = _saw(seen)
    wrong = [r for r in seen.ranks if any(one.wrong for one in r.report.rounds)]
    if wrong:
        names = [f"rank {r.rank} (GPU {r.gpu})" for r in wrong]
        return CHECK.verdict(
            "block",
            f"{saw}; wrong sums at {listed(names, 8)}",
            "Ranks add up their parts of every layer this way: the states would be wrong without "
            "an error.",
            'Set NCCL_P2P_DISABLE = "1" in host.env and check again; if the sums are right then, '
            "an IOMMU or PCIe ACS breaks the direct copies.",
        )
    slow = [r for r in _last_rounds(seen) if bus(r, len(seen.ranks)) < SLOW]
    if slow:
        return CHECK.verdict(
            "warn",
            f"{saw}: less than {SLOW / 1e9:.0f} GB/s",
            "Prefill exchanges states of every layer: links this slow take most of its time.",
            "See which way NCCL takes with NCCL_DEBUG=INFO, and the links with: nvidia-smi topo -m",
        )
    return CHECK.verdict("pass", saw)


def bus(one: Round, ranks: int) -> float:
    """Bus bandwidth, bytes a second, as nccl-tests defines it (doc/PERFORMANCE.md)."""
    return one.bytes / one.seconds * 2 * (ranks - 1) / ranks


def _last_rounds(seen: AllReduceFacts) -> list[Round]:
    return [r.report.rounds[-1] for r in seen.ranks if r.report.rounds]


def _saw(seen: AllReduceFacts) -> str:
    ranks = len(seen.ranks)
    first = seen.ranks[0].report
    told = [
        f"{size(one.bytes)} in {one.seconds * 1e6:.0f} µs ({one.bytes / one.seconds / 1e9:.3g} "
        f"GB/s, bus {bus(one, ranks) / 1e9:.3g} GB/s)"
        for one in first.rounds
    ]
    name = f"NCCL {show(first.nccl, 20)}" if first.nccl else "NCCL"
    return f"{name}, {plural(ranks, 'rank')}: {', '.join(told)}; {seen.seconds:.0f} s"


def _failed(seen: AllReduceFacts, profile: Profile) -> Verdict:
    told = [f"all-reduce over {plural(len(seen.ranks), 'rank')} did not come to its end"]
    late = missing(seen.ranks)
    if late:
        names = [f"rank {r.rank} on GPU {r.gpu} (at: {_phase(r)})" for r in late]
        told.append(f"did not arrive: {listed(names, 4)}")
    causes = [r for r in seen.ranks if r.report.problem]
    for rank in causes[:3]:
        told.append(f"rank {rank.rank}: {show(rank.report.problem, 300)}")
    if not causes:
        told += [f"rank {r.rank} {r.ended}: {r.words}"[:300] for r in seen.ranks if r.ended][:3]
    told += seen.warnings
    no_device = bool(causes) and all(r.report.problem.startswith("NoDevice") for r in causes)
    return CHECK.verdict(
        "warn" if no_device else "block",
        "\n".join(told),
        "vLLM's ranks meet the same way after the load: the run would hang or fail there.",
        'Set NCCL_P2P_DISABLE = "1" in host.env and check again; more is told with '
        "NCCL_DEBUG=INFO, and by: dmesg | grep -i -e xid -e nvrm",
    )


def missing(ranks: tuple[Rank, ...]) -> list[Rank]:
    """The ranks that were furthest behind, where they were not all at the same point."""
    places = {r.rank: _place(r) for r in ranks}
    least = min(places.values())
    if least == max(places.values()):
        return []
    return [r for r in ranks if places[r.rank] == least]


def _place(rank: Rank) -> int:
    phase = rank.report.phase
    return next((i for i, name in enumerate(_PHASES) if phase.startswith(name)), -1)


def _phase(rank: Rank) -> str:
    phase = show(rank.report.phase, 60)
    found = re.fullmatch(r"reduce (\d{1,15}) bytes", phase)
    return f"reduce {size(int(found[1]))}" if found else phase or "not begun"


def _collect(ask: Ask) -> AllReduceFacts:
    return exercise.collect("allreduce", AllReduceFacts, ask)


PROBE = Probe("nccl", AllReduceFacts, _collect, timeout=exercise.TURN + TIMEOUT + exercise.CLEANING)

CHECK = Check(
    id="nccl",
    title="Ranks reduce together",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Nothing is known of how the ranks reach each other.",
    silence_todo="Run it again, or try nccl-tests' all_reduce_perf on this host.",
    applies=only_deep,
)
