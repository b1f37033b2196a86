"""Check ``gpu-peers``: which GPUs reach each other directly, how fast, and whether bytes arrive."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Check, Facts, Probe, only_deep
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol.values import Profile, Verdict

from . import aim, exercise, steps
from .keeper import Keeper

#: Seconds for the one process that copies between all of them.
TIMEOUT = 75.0

#: A pair slower than this share of the fastest is named.
SLOW = 0.5


@dataclass(frozen=True)
class Pair:
    """Places in the run's list of GPUs: its ranks."""

    source: int
    target: int
    bytes_per_second: float
    wrong_words: int
    """64-bit words that did not arrive as they were sent."""


@dataclass(frozen=True)
class Reported:
    """What ``worker exercise peers`` writes."""

    phase: str = ""
    problem: str = ""
    access: tuple[tuple[bool, ...], ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True)
class PeersFacts:
    refused: str = ""
    gpus: tuple[int, ...] = ()
    """Their indices, in the order of the ranks."""
    ended: str = ""
    words: str = ""
    report: Reported = Reported()
    seconds: float = 0.0


def perform(keeper: Keeper, ask: Ask) -> PeersFacts:
    with aim.in_turn(keeper, ask, least=2) as found:
        if found.refused or len(found.gpus) < 2:
            return PeersFacts(_alone(found))
        env = aim.environment(ask.profile, found.uuids)
        asked = {"device": "cuda", "count": len(found.gpus)}
        command = steps.exercise(keeper, ask.profile, "peers", "peers", asked, env, TIMEOUT)
        (ended,) = keeper.run([command])
    words = " ".join(steps.last_words(ended)) if steps.how(ended) else ""
    return PeersFacts(
        gpus=tuple(g.index for g in found.gpus),
        ended=steps.how(ended),
        words=words,
        report=steps.read(keeper, ended, Reported) or Reported(),
        seconds=round(ended.seconds, 2),
    )


def _alone(found: aim.Aim) -> str:
    if found.ranks < 2:
        return "the run has one rank: nothing is copied between GPUs"
    if found.refused:
        return found.refused
    return f"fewer than two of the run's GPUs are free: {listed(found.left_out, 4)}"


# ------------------------------------------------------------------ the verdict


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.refused:
        return CHECK.verdict("skip", f"nothing was exercised: {seen.refused}")
    report = seen.report
    saw = _saw(seen)
    wrong = [p for p in report.pairs if p.wrong_words]
    if wrong:
        named = [f"{_pair(seen, p)} ({plural(p.wrong_words, 'word')})" for p in wrong]
        return CHECK.verdict(
            "block",
            f"{saw}\nbytes arrive wrong: {listed(named, 6)}",
            "Direct copies between these GPUs are wrong, mostly by an IOMMU or PCIe ACS between "
            "them: what the ranks exchange is noise, without an error.",
            'Set NCCL_P2P_DISABLE = "1" in host.env, or have the IOMMU and ACS switched off in '
            "firmware and kernel (iommu=pt).",
        )
    if seen.ended:
        where = f" at: {show(report.phase, 60)}" if report.phase else ""
        why = show(report.problem, 300) or show(seen.words, 300)
        return CHECK.verdict(
            "warn" if report.problem.startswith("NoDevice") else "block",
            f"{saw}\nthe process {seen.ended}{where}{f' ({why})' if why else ''}",
            "Ranks exchange their part of every layer the same way.",
            'Set NCCL_P2P_DISABLE = "1" in host.env and check again; look with: dmesg | grep -i '
            "-e xid -e iommu",
        )
    slow = _slow(seen)
    if slow:
        return CHECK.verdict(
            "warn",
            f"{saw}\nfar slower than the fastest: {listed(slow, 6)}",
            "All ranks wait for the slowest link at every layer.",
            "Look at the topology with: nvidia-smi topo -m; and at the links with: nvidia-smi "
            "nvlink -s",
        )
    return CHECK.verdict("pass", saw)


def _saw(seen: PeersFacts) -> str:
    report = seen.report
    count = len(seen.gpus)
    direct = sum(map(sum, report.access))
    lines = [f"direct access between {direct} of {count * (count - 1)} ordered pairs"]
    if not report.access:
        lines = [f"GPUs {', '.join(map(str, seen.gpus))}"]
    if report.pairs:
        speeds = [p.bytes_per_second / 1e9 for p in report.pairs]
        right = sum(not p.wrong_words for p in report.pairs)
        lines.append(
            f"copied between {plural(len(speeds), 'pair')}: {min(speeds):.3g} to "
            f"{max(speeds):.3g} GB/s, bytes right in {right}"
        )
    return "; ".join(lines)


def _slow(seen: PeersFacts) -> list[str]:
    pairs = seen.report.pairs
    best = max((p.bytes_per_second for p in pairs), default=0.0)
    return [
        f"{_pair(seen, p)} ({p.bytes_per_second / 1e9:.3g} GB/s)"
        for p in pairs
        if p.bytes_per_second < SLOW * best
    ]


def _pair(seen: PeersFacts, pair: Pair) -> str:
    names = [
        str(seen.gpus[i]) if i < len(seen.gpus) else f"#{i}" for i in (pair.source, pair.target)
    ]
    return f"GPU {names[0]} to {names[1]}"


def _collect(ask: Ask) -> PeersFacts:
    return exercise.collect("peers", PeersFacts, ask)


PROBE = Probe(
    "gpu-peers", PeersFacts, _collect, timeout=exercise.TURN + TIMEOUT + exercise.CLEANING
)

CHECK = Check(
    id="gpu-peers",
    title="GPUs reach each other",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Nothing is known of the copies between GPUs.",
    silence_todo="Run it again, or look with: nvidia-smi topo -p2p r",
    applies=only_deep,
)
