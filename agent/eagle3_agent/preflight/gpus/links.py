"""Check ``gpu-links``: NVLink, the fabric behind it, how the run's GPUs reach each other, PCIe."""

from __future__ import annotations

from eagle3_agent.nvml_facts import Health, Pair
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, plural, show
from eagle3_agent.protocol.values import Gpu, Profile, Verdict

from .count import SILENT_TODO, SILENT_WHY
from .gpu_facts import PROBE
from .used import NO_GPU, folded, numbers, used_by_run, with_health

_FABRIC = (
    "Look with: systemctl status nvidia-fabricmanager (as root: systemctl start "
    "nvidia-fabricmanager, in the driver's own version), and nvidia-smi -q | grep -A3 Fabric"
)

#: How far data goes between two GPUs, in the words of `nvidia-smi topo -m`, nearest first.
_FAR = ("same board", "PIX", "PXB", "PHB", "NODE", "SYS")


def judge(facts: Facts, profile: Profile) -> Verdict:
    if not used_by_run(facts, profile).gpus:
        return CHECK.verdict("skip", NO_GPU)
    known = with_health(facts, profile)
    if not known:
        return CHECK.verdict("skip", "no GPU of the run told its links: see gpu-count")
    ranks = len(used_by_run(facts, profile).gpus)
    stops = folded([(g.index, text) for g, h in known for text in _stopping(h, ranks)])
    fullest = _fullest(facts)
    warns = folded([(g.index, text) for g, h in known for text in _warning(g, h, ranks, fullest)])
    together = _together(facts, known)
    if stops or warns:
        return CHECK.verdict(
            "block" if stops else "warn",
            "\n".join([*stops, *warns, *together]),
            _why(known, ranks, fullest),
            _todo(known, fullest),
        )
    return CHECK.verdict("pass", "\n".join([_well(known), *together]))


# --------------------------------------------------------------------------- what is wrong


def _unready(health: Health) -> bool:
    return health.links.fabric in ("not-started", "in-progress")


def _stopping(health: Health, ranks: int) -> list[str]:
    """A GPU that hangs from an NVSwitch starts no CUDA before it is registered with the fabric."""
    if _unready(health) and health.links.peers.get("switch") and ranks > 1:
        return [f"its NVSwitch fabric is {health.links.fabric.replace('-', ' ')}"]
    return []


def _fullest(facts: Facts) -> dict[str, int]:
    """Name of a part -> the most links that one of them has up on this host.

    How many of a part's links are wired is the board's business (bridges join 12 of 18): one that
    has fewer up than its like has lost some.
    """
    seen = facts.get(PROBE)
    found: dict[str, int] = {}
    for gpu in seen.sample.gpus:
        health = seen.health_of(gpu.index)
        if health is not None:
            found[gpu.name] = max(found.get(gpu.name, 0), health.links.up)
    return found


def _lost_links(gpu: Gpu, health: Health, fullest: dict[str, int]) -> int:
    # a MIG slice goes by another name than its GPU, and uses no link
    return max(0, fullest.get(gpu.name, 0) - health.links.up) if health.links.down else 0


def _narrow(health: Health) -> bool:
    pcie = health.pcie
    return bool(pcie.width and pcie.width_max and pcie.width < pcie.width_max)


def _warning(gpu: Gpu, health: Health, ranks: int, fullest: dict[str, int]) -> list[str]:
    links, pcie = health.links, health.pcie
    found = []
    if _unready(health) and not _stopping(health, ranks):
        found.append(f"its fabric is {links.fabric.replace('-', ' ')}")
    if links.fabric == "completed" and links.fabric_status:
        found.append(f"its fabric registration ended with NVML status {links.fabric_status}")
    if links.fabric_degraded:
        found.append("its fabric runs with degraded bandwidth")
    if _lost_links(gpu, health, fullest):
        found.append(
            f"NVLink {numbers(links.down)} down, {links.up} up; "
            f"others of its kind have {fullest[gpu.name]} up"
        )
    if _narrow(health):
        found.append(f"PCIe x{pcie.width}, the slot and the part can x{pcie.width_max}")
    return found


def _why(known: list[tuple[Gpu, Health]], ranks: int, fullest: dict[str, int]) -> str:
    parts = []
    if any(_stopping(h, ranks) for _, h in known):
        parts.append("Such a GPU starts no CUDA until the fabric manager has registered it.")
    elif any(_unready(h) for _, h in known):
        parts.append("Where an NVSwitch is behind it, CUDA does not start before it is completed.")
    if any(_lost_links(g, h, fullest) for g, h in known):
        parts.append("All ranks exchange every layer's sums over these links.")
    if any(_narrow(h) for _, h in known):
        parts.append("Loading and copying states to the host is slower over a narrow link.")
    if not parts:
        parts.append("Ranks exchange every layer's sums over the fabric.")
    return " ".join(parts)


def _todo(known: list[tuple[Gpu, Health]], fullest: dict[str, int]) -> str:
    parts = []
    links = [h.links for _, h in known]
    if any(x.fabric not in ("", "completed", "not-supported") or x.fabric_status for x in links):
        parts.append(_FABRIC)
    lost = any(_lost_links(g, h, fullest) for g, h in known)
    if lost or any(x.fabric_degraded for x in links):
        parts.append("Look with: nvidia-smi nvlink -s, and for Xid 74 in the kernel log")
    if any(_narrow(h) for _, h in known):
        parts.append("Look with: nvidia-smi -q -d PCI; seat the card or riser again")
    return "\n".join(parts)


# --------------------------------------------------------------------------- what is so


def _well(known: list[tuple[Gpu, Health]]) -> str:
    said = []
    for gpu, health in known:
        links, pcie = health.links, health.pcie
        parts = [_nvlink(health)]
        if links.fabric in ("completed", "in-progress", "not-started"):
            parts.append(f"fabric {links.fabric}")
        if pcie.generation and pcie.width:
            best = pcie.generation_max
            idle = f" of {best}, as idle GPUs do" if best and pcie.generation < best else ""
            parts.append(f"PCIe {pcie.generation}{idle}, x{pcie.width}")
        said.append((gpu.index, ", ".join(parts)))
    return "; ".join(folded(said)[:6])


def _nvlink(health: Health) -> str:
    links = health.links
    if not links.up:
        return "no NVLink in use" if links.down else "no NVLink"
    to = listed([f"{count} to a {peer}" for peer, count in sorted(links.peers.items())], 3)
    text = f"{plural(links.up, 'NVLink')} up" + (f" ({to})" if to else "")
    if links.peers.get("switch") and not links.fabric:
        text += ", NVML does not say whether the fabric is ready"
    return text


def _together(facts: Facts, known: list[tuple[Gpu, Health]]) -> list[str]:
    """How the run's GPUs reach each other; empty for one GPU."""
    indices = {g.index for g, _ in known}
    if len(indices) < 2:
        return []
    pairs = [p for p in facts.get(PROBE).pairs if p.one in indices and p.other in indices]
    wanted = len(indices) * (len(indices) - 1) // 2
    if not pairs:
        why = show(facts.get(PROBE).pairs_problem, 120)
        return [f"how they reach each other NVML does not say{f': {why}' if why else ''}"]
    linked = [p for p in pairs if p.nvlink]
    text = f"{len(linked)} of {plural(wanted, 'pair')} over NVLink" if linked else ""
    rest = [p for p in pairs if not p.nvlink]
    if rest:
        text += f"{'; ' if text else ''}{_by_level(rest)}"
    if len(pairs) < wanted:
        text += f"; {wanted - len(pairs)} not read for want of time"
    return [f"between them: {text}"]


def _by_level(pairs: list[Pair]) -> str:
    """The farthest way, and how many take it."""
    levels = [p.level for p in pairs if p.level in _FAR]
    if not levels:
        return f"{plural(len(pairs), 'pair')} by a way that NVML does not say"
    far = max(levels, key=_FAR.index)
    return f"{plural(len(pairs), 'pair')} over PCIe, the farthest {far} ({levels.count(far)})"


CHECK = Check(
    id="gpu-links",
    title="GPU links up",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
