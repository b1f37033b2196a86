"""What the headless commands print: values -> lines of text, and the objects of ``--json``; pure.

Lines are not yet cleaned of a host's control characters: the terminal that
prints them does that.  A line with a colour is a pair; every line reads
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle3_agent.protocol import to_json
from eagle3_agent.protocol.events import Stage
from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.messages import Cleared, Compat
from eagle3_agent.protocol.messages import Status as AgentState
from eagle3_agent.protocol.values import (
    ErrorInfo,
    Gpu,
    HostSample,
    PatchFinding,
    Problem,
    Report,
    RunDetail,
    RunState,
    RunSummary,
    Throughput,
    Where,
)

from . import bounds, eta, formats, render_cause, render_preflight, scrub
from .hosttext import clean, crop, crop_left, fit
from .outcomes import MARKS, WRONG, Line, Tone
from .verdicts import already_known

#: The terminal's colour of a mark; what goes on or waits stands without one.
_TONES: dict[Tone, str] = {"good": "green", "look": "amber", "bad": "red", "now": "", "dim": ""}
_FINDINGS: dict[str, Line] = {
    "needed": ("▶", "amber"),
    "not-needed": ("✓", ""),
    "cannot-tell": ("?", "dim"),
}


def state_colour(state: RunState) -> str:
    return _TONES[MARKS[state][1]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Columns as wide as their widest cell; those numbered in ``right`` are right-aligned."""
    cells = [[clean(cell) for cell in row] for row in [header, *rows]]
    widths = [min(60, max(len(row[i]) for row in cells)) for i in range(len(header))]
    return [
        "  ".join(fit(cell, widths[i], right=i in right) for i, cell in enumerate(row)).rstrip()
        for row in cells
    ]


# --------------------------------------------------------------------------- problems


def problem(value: Problem) -> list[Line]:
    lines: list[Line] = [(value.title, "red")]
    lines += [(f"  {line}", "") for line in value.happened.split("\n") if line]
    if value.todo:
        lines.append((f"  ▸ {value.todo}", ""))
    return lines


def problem_object(value: Problem, report: Report | None) -> dict[str, Any]:
    return {"problem": to_json(value), "preflight": to_json(report)}


# --------------------------------------------------------------------------- checks


def compat(value: Compat) -> list[Line]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(value.versions.items()))
    lines: list[Line] = [(versions or "no version could be read", "bold")]
    if value.engine and not value.findings:
        words = f"engine {value.engine}: no patch bears on it; {value.seconds:.1f} s"
        return [*lines, (words, ""), *((f"  ! {p}", "amber") for p in value.problems)]
    for finding in value.findings:
        lines += _finding(finding)
    counts = dict.fromkeys(_FINDINGS, 0)
    for finding in value.findings:
        counts[finding.status] += 1
    sums = ", ".join(f"{n} {status.replace('-', ' ')}" for status, n in counts.items())
    lines.append((f"{len(value.findings)} patches: {sums}; {value.seconds:.1f} s", ""))
    return lines


def _finding(value: PatchFinding) -> list[Line]:
    mark, colour = _FINDINGS[value.status]
    lines: list[Line] = [
        (f"  {mark} {value.patch}  {value.status.replace('-', ' ')}: {value.title}", colour),
        (f"      seen:    {value.evidence}", ""),
    ]
    if value.status == "needed":
        told = (("symptom", value.symptom), ("change", value.change), ("until", value.until))
        lines += [(f"      {name + ':':8} {text}", "") for name, text in told if text]
    return lines


# --------------------------------------------------------------------------- runs


def run_object(value: RunSummary) -> dict[str, Any]:
    """The stable keys of a run; times are epoch seconds by the host's clock."""
    return {
        "run": value.run,
        "number": value.number,
        "state": value.state,
        "attempt": value.attempt,
        "profile": value.profile,
        "engine": value.engine,
        "model": value.model,
        "stage": value.stage,
        "created": value.created,
        "started": value.started,
        "ended": value.ended,
        "samples": to_json(value.samples),
        "tokens": value.tokens,
        "tokens_per_second": value.tokens_per_second,
        "bytes": value.bytes,
        "output_dir": value.output_dir,
        "error": error_object(value.error),
        "cause": value.cause,
    }


def error_object(value: ErrorInfo | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        "type": value.type,
        "message": value.message,
        "rank": value.rank,
        "where": to_json(value.where),
    }


def detail_object(value: RunDetail) -> dict[str, Any]:
    """As ``run_object``, with the resolved ``profile`` and the traceback; secrets are masked."""
    summary = run_object(value.summary)
    if summary["error"] is not None and value.summary.error is not None:
        summary["error"]["traceback"] = value.summary.error.traceback
    return {
        **summary,
        "profile": scrub.value(to_json(value.resolved)),
        "first_cause": scrub.value(to_json(value.cause)),
        "preflight": to_json(value.preflight),
        "forced": list(value.forced),
        "patches": to_json(value.patches),
        "environment": to_json(value.environment),
        "stages": to_json(value.stages),
        "throughput": throughput_object(value.throughput),
        "folder": value.folder,
    }


def throughput_object(value: Throughput | None) -> dict[str, Any] | None:
    """The event's fields; ``shares`` of the time, and what bounds the run."""
    if value is None:
        return None
    parts = bounds.shares(value)
    return {
        **to_json(value),
        "shares": None if parts is None else dict(parts.items()),
        "bound": bounds.bound(value),
        "words": bounds.words(value),
    }


def runs(values: Sequence[RunSummary], now: float) -> list[Line]:
    if not values:
        return [("no runs yet", "")]
    header = ("run", "state", "try", "profile", "engine", "started", "took", "samples", "tok/s", "")
    rows = []
    for run in values:
        took = None if run.started is None else (run.ended or now) - run.started
        rows.append(
            (
                run.run,
                f"{MARKS[run.state][0]} {run.state}",
                str(run.attempt),
                run.profile,
                run.engine,
                formats.moment(run.started, now),
                formats.duration(took),
                formats.samples(run.samples),
                formats.count(run.tokens_per_second),
                _remark(run),
            )
        )
    head, *lines = table(header, rows, right=(2, 6, 7, 8))
    colours = [state_colour(run.state) for run in values]
    return [(head, "dim"), *zip(lines, colours)]


def _remark(run: RunSummary) -> str:
    """What a line of the history still has to say: the error, or the stage that goes on."""
    if run.cause:
        return crop(run.cause, 60)
    if run.error is not None:
        return crop(error_text(run.error), 60)
    return run.stage if run.state == "running" else ""


def error_text(value: ErrorInfo) -> str:
    """One line; an exception without a message still says what it is and where it was raised."""
    rank = "" if value.rank is None else f"rank {value.rank}: "
    message = f": {value.message}" if value.message else ""
    spot = "" if message or value.where is None else f" at {_where(value.where)}"
    return f"{rank}{value.type}{message}{spot}"


def _where(value: Where) -> str:
    source = f"   {value.source.strip()}" if value.source else ""
    return f"{crop_left(value.file, 60)}:{value.line}{source}"


def outcome(value: RunSummary) -> list[str]:
    """How a run ended, in a few lines."""
    took = ""
    if value.started is not None and value.ended is not None:
        took = f" after {formats.duration(value.ended - value.started)}"
    lines = [f"{MARKS[value.state][0]} run {value.run} {value.state}{took}"]
    if value.error is not None:
        lines.append(f"  {error_text(value.error)}")
        if value.error.where is not None and value.error.message:
            lines.append(f"  {_where(value.error.where)}")
    amount = (
        f"{formats.count(value.tokens)} tokens   "
        f"{formats.rate(value.tokens_per_second)}   {formats.size(value.bytes)}"
    )
    if value.state == "completed" and value.samples.done and not value.tokens:
        amount = "all of them kept from before"
    lines.append(f"  {formats.samples(value.samples, ' samples')}   {amount}")
    lines.append(f"  in {value.output_dir}")
    return lines


def detail(value: RunDetail, now: float) -> list[Line]:
    run, resolved = value.summary, value.resolved
    lines: list[Line] = [(text, state_colour(run.state)) for text in outcome(run)[:1]]
    lines += [(text, "") for text in outcome(run)[1:]]
    lines.append((f"  attempt {run.attempt}, engine {run.engine}, profile {run.profile}", ""))
    lines.append((f"  started {formats.moment(run.started, now)}, folder {value.folder}", ""))
    if value.cause is not None:
        lines += render_cause.lines(value.cause)
    lines.append(("stages", "bold"))
    for stage in value.stages:
        end = stage.ended if stage.ended is not None else now
        going = "" if stage.ended is not None else "  (goes on)"
        lines.append((f"  {stage.name:10} {formats.duration(end - stage.started):>8}{going}", ""))
    if value.throughput is not None:
        lines += _throughput(value.throughput)
    lines.append(("profile", "bold"))
    for section, values in scrub.value(to_json(resolved)).items():
        if isinstance(values, dict):
            told = "  ".join(f"{k}={v}" for k, v in values.items() if v not in (None, [], {}))
            lines.append((f"  {section:8} {told}", ""))
    lines += _detail_checks(value)
    lines.append(("environment", "bold"))
    lines += [(f"  {name:24} {item}", "") for name, item in sorted(value.environment.items())]
    if run.error is not None and run.error.traceback:
        lines.append(("traceback", "bold"))
        lines += [(f"  {text}", "") for text in run.error.traceback.split("\n")]
    return lines


def _throughput(value: Throughput) -> list[Line]:
    parts = bounds.shares(value)
    if parts is None:
        return []
    waits = bounds.bound(value) == "waiting"
    told = "   ".join(f"{name} {formats.percent(100 * share)}" for name, share in parts.items())
    rest = "   ".join(f"{name} {figure}" for name, figure in bounds.facts(value))
    rate = formats.rate(bounds.model_rate(value))
    return [
        ("throughput", "bold"),
        (f"  {bounds.words(value)}", "amber" if waits else ""),
        (f"  {told}", ""),
        (f"  {rest}", ""),
        (f"  {bounds.computed(value)}, {rate} mean of the model", ""),
    ]


def _detail_checks(value: RunDetail) -> list[Line]:
    lines: list[Line] = []
    if value.preflight is not None:
        lines.append(("preflight", "bold"))
        if value.summary.state in WRONG:
            lines.append((f"  before it: {already_known(value.preflight, value.forced)}", ""))
        told = render_preflight.report(value.preflight, everything=True)
        lines += [(f"  {text}", colour) for text, colour in told]
    if value.forced:
        lines.append((f"  started over: {', '.join(value.forced)}", "amber"))
    needed = [p for p in value.patches if p.status == "needed"]
    if value.patches:
        lines.append((f"patches: {len(needed)} of {len(value.patches)} needed", "bold"))
        lines += [(f"  {p.patch}  {p.title}", "") for p in needed]
    return lines


def cleared(value: Cleared) -> list[str]:
    act = "removed" if value.removed else "would remove"
    what = f"{formats.count(value.files)} files, {formats.size(value.bytes)}, in {value.folder}"
    lines = [f"{act} {what}"]
    if value.kept:
        lines.append(f"  stays: {', '.join(value.kept)}")
    return lines


# --------------------------------------------------------------------------- progress


def stage_line(standing: Standing, event: Stage) -> Line:
    """A stage that ended."""
    took = formats.duration(standing.stage_seconds(event.name, event.t))
    good = event.status == "done"
    detail = f"   {event.detail}" if event.detail else ""
    return f"  {'✓' if good else '✗'} {event.name:10} {took:>6}{detail}", "" if good else "red"


def progress_line(standing: Standing) -> str:
    """Where a run stands, in one line; empty while no stage goes on."""
    stage = standing.stage
    if stage is None or stage.ended is not None:
        return ""
    text = f"  ▶ {stage.name}"
    if stage.name == "load" and standing.shards_total:
        text += f"   {standing.shards_done} / {standing.shards_total} shards"
    if stage.name == "extract":
        text += "  "
        text += f" {formats.samples(standing.samples, ' samples')}   {formats.rate(standing.rate)}"
        text += f"   {formats.size(standing.bytes)}"
        told = standing.throughput
        if told is not None and bounds.bound(told) == "waiting":
            text += f"   {bounds.words(told)}"
    rest = eta.estimate(standing, standing.last or 0.0)
    return f"{text}   ETA {formats.duration(rest.seconds)} ({rest.basis})" if rest else text


# --------------------------------------------------------------------------- hosts


def gpus(value: HostSample) -> list[Line]:
    lines: list[Line] = []
    if value.gpus:
        header = ("gpu", "name", "memory GiB", "util", "temp", "power", "processes")
        head, *rows = table(header, [_gpu(gpu) for gpu in value.gpus], right=(0, 2, 3, 4, 5))
        driver = f"driver {value.driver or '-'}, CUDA {value.cuda or '-'}"
        lines += [(driver, ""), (head, "dim")]
        lines += [(row, "red" if gpu.error else "") for row, gpu in zip(rows, value.gpus)]
    else:
        lines.append((f"no NVIDIA GPU: {value.gpu_problem or 'the host has none'}", "amber"))
    memory = f"{formats.size(value.memory_used)} of {formats.size(value.memory_total)}"
    load = "-" if value.load is None else f"{value.load:.2f}"
    cpu = f"{value.cpu_count} CPUs, {formats.percent(value.cpu_percent)}, load {load}"
    lines.append((f"{cpu}; memory {memory}", ""))
    return lines


def _gpu(value: Gpu) -> tuple[str, ...]:
    if value.error:
        return str(value.index), value.name or "-", "-", "-", "-", "-", value.error
    held = "; ".join(
        f"{p.pid} {p.user} {crop(p.command, 30)} {formats.size(p.bytes)}" for p in value.processes
    )
    return (
        str(value.index),
        value.name or "-",
        f"{formats.gib(value.memory_used)} / {formats.gib(value.memory_total)}",
        formats.percent(value.utilization),
        "-" if value.temperature is None else f"{value.temperature}°",
        "-" if value.power is None else f"{value.power:.0f} W",
        held,
    )


def agent(value: AgentState, now: float) -> list[str]:
    return [
        f"agent {value.archive[:16]}  pid {value.pid}, up {formats.duration(now - value.started)}",
        f"  files in {value.folder}",
        f"  {value.clients} client{'' if value.clients == 1 else 's'}; "
        f"running: {', '.join(value.running) or 'none'}; "
        f"queued: {', '.join(value.queued) or 'none'}",
    ]
