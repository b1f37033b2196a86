"""A preflight as lines for the terminal, and the objects of its ``--json``; pure.

Read from the top it is an answer: ready or not, what stands in the way and what
can be done about it, what to look at, and one line for all that is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.messages import Probing
from eagle3_agent.protocol.values import Report, Status, Verdict

from . import formats
from .checks import Deed
from .hosttext import crop
from .outcomes import Line
from .verdicts import ORDER, Offer, folded_words, having, offers

MARKS: dict[Status, Line] = {
    "block": ("✗", "red"),
    "warn": ("!", "amber"),
    "skip": ("·", "dim"),
    "pass": ("✓", ""),
}


def report(value: Report, *, everything: bool = False) -> list[Line]:
    """The whole answer; ``everything`` unfolds the checks that found nothing."""
    lines = [headline(value)]
    for verdict in having(value, "block", "warn"):
        lines += _open(verdict)
    quiet = having(value, "skip", "pass")
    if everything:
        width = max((len(v.title) for v in quiet), default=0)
        lines += [_row(v, min(width, 40)) for v in quiet]
    elif quiet:
        lines.append((f"✓ {', '.join(folded_words(value))}", ""))
    return lines


def headline(value: Report) -> Line:
    """``BLOCKED by 2 of 31 checks`` or ``READY``, with what it took."""
    total, took = len(value.verdicts), f"{value.seconds:.1f} s"
    blocking = value.blocking
    if blocking:
        names = ", ".join(v.check for v in blocking)
        return f"BLOCKED by {len(blocking)} of {total} checks ({names}), {took}", "red"
    warnings = sum(v.status == "warn" for v in value.verdicts)
    look = f", {warnings} to look at" if warnings else ""
    return f"READY: no check of {total} blocks{look}, {took}", "green"


def _open(verdict: Verdict) -> list[Line]:
    """One check in full, with the actions that it offers."""
    mark, colour = MARKS[verdict.status]
    lines: list[Line] = [(f"{mark} {verdict.title}  ({verdict.check})", colour)]
    lines += [(f"    {text}", "") for text in verdict.saw.split("\n") if text]
    lines += [(f"    {text}", "dim") for text in verdict.why.split("\n") if text]
    lines += [(f"    ▸ {text}", "") for text in verdict.todo.split("\n") if text]
    lines += [(f"    --fix  {a.id}: {a.title}", "bold") for a in verdict.actions]
    return lines


def _row(verdict: Verdict, width: int) -> Line:
    mark, colour = MARKS[verdict.status]
    first, *_ = verdict.saw.split("\n")
    return f"{mark} {verdict.title.ljust(width)}  {first}", colour


def hints(value: Report, *, everything: bool, fixing: bool) -> list[Line]:
    """What else this command could do with the report."""
    lines: list[Line] = []
    if not everything and having(value, "skip", "pass"):
        lines.append(("  --all shows every check", "dim"))
    offered = len(offers(value))
    if offered and not fixing:
        many = "1 action is offered" if offered == 1 else f"{offered} actions are offered"
        lines.append((f"  {many}: --fix shows exactly what each would do, and asks", "dim"))
    return lines


# --------------------------------------------------------------------------- actions


def offer(value: Offer) -> list[str]:
    """What would be done, in full."""
    lines = [f"{value.verdict.title}: {value.action.title}?"]
    return lines + [f"    {text}" for text in value.action.effect]


def deed(value: Deed) -> list[Line]:
    """What was done, and whether it helped."""
    lines: list[Line] = [(f"    {text}", "") for text in value.done]
    if value.problem is not None:
        lines.append((f"  ✗ not done: {value.problem.title}: {value.problem.happened}", "red"))
        if value.problem.todo:
            lines.append((f"    ▸ {value.problem.todo}", ""))
    elif value.helped:
        lines.append((f"  ✓ it helped: {value.check} now: {value.now}", "green"))
    else:
        lines.append((f"  ! it did not help: {value.check} now: {value.now}", "amber"))
    return lines


def progress(value: Probing | None, seconds: float) -> str:
    """``  ▶ 14 of 22 probes, 0:41; waiting for nccl, disk-speed``"""
    took = formats.duration(seconds)
    if value is None:
        return f"  ▶ asking the host, {took}"
    text = f"  ▶ {value.done} of {value.total} probes, {took}"
    if value.waiting:
        text += f"; waiting for {crop(', '.join(value.waiting), 200)}"
    return text


# --------------------------------------------------------------------------- --json


def report_object(
    value: Report, target: str, *, deep: bool = False, deeds: Sequence[Deed] | None = None
) -> dict[str, Any]:
    """The stable keys of ``preflight --json``; ``fixes`` only where fixing was asked for."""
    ordered = sorted(value.verdicts, key=lambda v: ORDER.index(v.status))
    made = {
        "target": target,
        "ready": not value.blocking,
        "deep": deep,
        "blocking": [v.check for v in value.blocking],
        "warning": [v.check for v in ordered if v.status == "warn"],
        **to_json(value),
    }
    if deeds is not None:
        made["fixes"] = fix_objects(deeds)
    return made


def fix_objects(deeds: Iterable[Deed]) -> list[dict[str, Any]]:
    return [
        {
            "check": made.check,
            "action": made.action.id,
            "kind": made.action.kind,
            "title": made.action.title,
            "effect": list(made.action.effect),
            "done": list(made.done),
            "helped": made.helped,
            "now": made.now,
            "problem": to_json(made.problem),
        }
        for made in deeds
    ]
