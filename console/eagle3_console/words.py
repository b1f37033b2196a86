"""Sentences of the TUI's questions and toasts; pure."""

from __future__ import annotations

import textwrap
from typing import Literal

from eagle3_agent.protocol.values import Profile, RunSummary

from . import formats
from .checks import Deed
from .hosttext import clean, crop
from .store import State
from .verdicts import Offer

Severity = Literal["information", "warning", "error"]


def start_words(profile: Profile) -> str:
    """What a start will run."""
    samples = "every sample"
    if profile.data.max_samples is not None:
        samples = f"{formats.count(profile.data.max_samples)} samples"
    layers = " ".join(map(str, profile.capture.layers))
    return (
        f"{clean(profile.name)}: {samples}, layers {crop(layers, 40)}, "
        f"into {clean(profile.output.dir)}"
    )


def effect_words(offer: Offer) -> list[str]:
    """Everything that an action would do, as a list that stays one when it is wrapped."""
    rows: list[str] = []
    for line in offer.action.effect:
        wrapped = textwrap.wrap(clean(line), 66, break_on_hyphens=False)
        rows += [("  " if i else "• ") + part for i, part in enumerate(wrapped)]
    return rows


def deed_words(deed: Deed) -> tuple[str, str, Severity]:
    """(title, text, severity) of the toast for an action that was asked for."""
    title = clean(deed.action.title)
    if deed.problem is not None:
        return f"Not done: {title}", clean(deed.problem.happened), "error"
    last = clean(deed.done[-1]) if deed.done else ""
    if deed.helped:
        return "It helped", last or title, "information"
    return "It did not help", last or title, "warning"


def abort_words(state: State, run: RunSummary) -> list[str]:
    """Exactly what an abort would end, and what stays."""
    rows = [f"{clean(run.profile)}, attempt {run.attempt}, {run.state}"]
    if run.state == "queued":
        return [*rows, "", "It waits in the queue and has no process; it would be taken out."]
    if run.state == "lost":
        return [
            *rows,
            "",
            "Its supervisor is gone. Ends its worker and what the worker started,",
            "where they still live.",
            "Files that are finished stay.",
        ]
    standing = state.standing if run.run == state.current else None
    samples = standing.samples if standing is not None else run.samples
    stage = standing.stage.name if standing is not None and standing.stage else clean(run.stage)
    rows.append(f"in {stage or 'its start'}, {formats.samples(samples, ' samples')} done")
    spawned = standing.spawned if standing is not None else None
    rows.append("")
    if spawned is not None:
        rows.append(f"Ends worker pid {spawned.worker} and every process below it")
        rows.append(f"(its supervisor, pid {spawned.supervisor}, sees to it and leaves last).")
    else:
        rows.append("Ends its worker (pid not known here yet) and every process below it.")
    rows += _holders(state)
    rows.append("Files that are finished stay.")
    return rows


def _holders(state: State) -> list[str]:
    if state.host is None:
        return []
    found = {p.pid: clean(p.command) for gpu in state.host.gpus for p in gpu.processes}
    if not found:
        return []
    names = ", ".join(f"{pid} {crop(name, 24)}" for pid, name in list(found.items())[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return [f"On the GPUs now: {names}{more}.", ""]


def ended_words(run: RunSummary) -> tuple[str, str, Severity]:
    """(title, text, severity) of the toast for a run that has ended."""
    took = None
    if run.started is not None and run.ended is not None:
        took = run.ended - run.started
    title = f"Run {run.number} {run.state} after {formats.duration(took)}"
    done = formats.samples(run.samples, " samples")
    if run.state == "completed":
        return title, f"{clean(run.profile)}: {done}", "information"
    if run.state in ("incomplete", "aborted"):
        return title, f"{clean(run.profile)}: {done}", "warning"
    why = clean(run.cause) or (clean(run.error.type) if run.error else "no exception was recorded")
    return title, f"{crop(why, 100)}; e shows more", "error"
