"""Check ``gpu-health``: memory errors, resets that are due, and clocks that are held back."""

from __future__ import annotations

from eagle3_agent.nvml_facts import Health
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.libraries import interpreter_facts
from eagle3_agent.preflight.text import listed, number, plural, show
from eagle3_agent.protocol.values import Gpu, Profile, Verdict

from .count import SILENT_TODO, SILENT_WHY
from .gpu_facts import PROBE
from .used import NO_GPU, folded, used_by_run, with_health

#: What the driver asks for (its recovery action) that a run cannot start before.
_STOPS = {
    "gpu-reset": "the driver asks for a reset of this GPU",
    "drain-and-reset": "the driver asks to drain and reset this GPU",
    "bus-reset": "the driver asks for a bus reset of this GPU",
    "node-reboot": "the driver asks for a reboot of the host",
    "system-reboot": "the driver asks for a reboot of the host",
}

_SLOWS = {
    "hw-thermal": "the hardware slows it down for heat",
    "sw-thermal": "the driver slows it down for heat",
    "power-brake": "the power supply's brake slows it down",
    "hw-slowdown": "the hardware slows it down",
}


def judge(facts: Facts, profile: Profile) -> Verdict:
    if not used_by_run(facts, profile).gpus:
        return CHECK.verdict("skip", NO_GPU)
    found = with_health(facts, profile)
    if not found:
        return CHECK.verdict("skip", "no GPU of the run told its health: see gpu-count")
    stops = folded([(g.index, text) for g, h in found for text in _stopping(h)])
    warns = folded([(g.index, text) for g, h in found for text in _warning(g, h)])
    if stops:
        return CHECK.verdict(
            "block",
            "\n".join(stops + warns),
            "CUDA refuses such a GPU, or its memory fails in the middle of the run.",
            _reset(found),
        )
    if warns:
        return CHECK.verdict("warn", "\n".join(warns), _why(found), _todo(found))
    return CHECK.verdict("pass", _well(found))


def _stopping(health: Health) -> list[str]:
    errors = health.errors
    found = [_STOPS[errors.recovery]] if errors.recovery in _STOPS else []
    if errors.remap_failed:
        found.append("a row remap failed: the part has run out of spare rows, or cannot use them")
    return found


def _warning(gpu: Gpu, health: Health) -> list[str]:
    return [*_memory(health), *_speed(gpu, health), *_odd(health)]


def _memory(health: Health) -> list[str]:
    errors = health.errors
    found = []
    if errors.uncorrected:
        count = plural(errors.uncorrected, "uncorrectable ECC error")
        found.append(f"{count} since the driver was loaded")
    if errors.remap_pending:
        found.append("a row remap waits for a reset")
    if errors.retired_pending:
        found.append("a page retirement waits for a reset")
    if errors.recovery in ("drain-p2p", "recover-imex-domain"):
        found.append(f"the driver asks for {errors.recovery}: peers over NVLink are at risk")
    return found


def _speed(gpu: Gpu, health: Health) -> list[str]:
    clocks = health.clocks
    reasons = [_SLOWS[r] for r in clocks.reasons or () if r in _SLOWS]
    if len(reasons) > 1 and _SLOWS["hw-slowdown"] in reasons:
        reasons.remove(_SLOWS["hw-slowdown"])  # the bit that the other two set as well
    found = reasons
    if clocks.slowdown and gpu.temperature is not None and gpu.temperature >= clocks.slowdown:
        found.append(f"{gpu.temperature} °C; it slows down from {clocks.slowdown} °C on")
    if clocks.power_default and gpu.power_limit and gpu.power_limit < clocks.power_default - 0.5:
        found.append(
            f"its power is limited to {gpu.power_limit:.0f} W, "
            f"the part is made for {clocks.power_default:.0f} W"
        )
    return found


def _odd(health: Health) -> list[str]:
    if not health.odd:
        return []
    return [f"NVML answers what cannot be: {show(listed(health.odd, 3), 240)}"]


def _why(found: list[tuple[Gpu, Health]]) -> str:
    parts = []
    if any(_memory(h) for _, h in found):
        parts.append("Memory that failed once fails again sooner than other memory: a run of hours "
                     "can end with an ECC error.")  # fmt: skip
    if any(_speed(g, h) for g, h in found):
        parts.append("All ranks wait for the slowest GPU.")
    if any(h.odd for _, h in found):
        parts.append("What was answered so is taken for unknown.")
    return " ".join(parts)


def _todo(found: list[tuple[Gpu, Health]]) -> str:
    parts = []
    if any(_memory(h) for _, h in found):
        parts.append(_reset([(g, h) for g, h in found if _memory(h)]))
    if any(_speed(g, h) for g, h in found):
        parts.append("Look with: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER")
    if any(h.odd for _, h in found):
        parts.append("Compare with: nvidia-smi -q")
    return "\n".join(parts)


def _reset(found: list[tuple[Gpu, Health]]) -> str:
    if any(h.errors.recovery in ("node-reboot", "system-reboot") for _, h in found):
        return "Reboot the host before the run."
    ids = sorted({h.index for _, h in found if _stopping(h) or _memory(h)})
    which = ",".join(str(i) for i in ids)
    text = f"With nothing running on it: nvidia-smi --gpu-reset -i {which} (or reboot the host)."
    if any(h.errors.remap_failed for _, h in found):
        text += " A failed remap stays: the part is due for replacement."
    return text


def _well(found: list[tuple[Gpu, Health]]) -> str:
    parts = [plural(len(found), "GPU")]
    silent = []
    if all(h.errors.uncorrected == 0 for _, h in found):
        parts.append("no uncorrectable ECC error")
    else:
        silent.append("ECC errors")
    if all(h.errors.remap_pending is False or h.errors.retired_pending is False for _, h in found):
        parts.append("no row or page waits for a reset")
    else:
        silent.append("row remaps")
    if all(h.clocks.reasons is not None for _, h in found):
        capped = sum("power-cap" in (h.clocks.reasons or ()) for _, h in found)
        parts.append(f"{number(capped)} at their power cap" if capped else "clocks not held back")
    else:
        silent.append("clocks")
    remapped = sum(h.errors.remapped or 0 for _, h in found)
    if remapped:
        parts.append(f"{plural(remapped, 'row')} remapped earlier")
    degrees = [g.temperature for g, _ in found if g.temperature is not None]
    if degrees:
        low, high = min(degrees), max(degrees)
        parts.append(f"{low} °C" if low == high else f"{low} to {high} °C")
    text = ", ".join(parts)
    return text + (f"; NVML does not say for all of them: {', '.join(silent)}" if silent else "")


CHECK = Check(
    id="gpu-health",
    title="GPUs healthy",
    needs=(PROBE,),
    wants=(interpreter_facts.PROBE,),
    judge=judge,
    silence="warn",
    silence_why=SILENT_WHY,
    silence_todo=SILENT_TODO,
)
