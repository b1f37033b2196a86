"""Longer texts as rows: everything about one run, an error with its traceback, a profile."""

from __future__ import annotations

import dataclasses
import textwrap
from functools import lru_cache
from typing import Any

from textual.content import Content

from eagle3_agent.protocol.events import Event, Skipped
from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.values import ErrorInfo, Profile, RunDetail, RunSummary, Throughput
from eagle3_console import bounds, formats, scrub
from eagle3_console.hosttext import clean, clean_lines, crop, fit, folded
from eagle3_console.outcomes import WRONG
from eagle3_console.store import State
from eagle3_console.verdicts import already_known

from . import cause, ink, throughput
from .events import event_line
from .events import rows as event_rows
from .run import error_headline, stage_items, where
from .verdicts import headline, report_lines

#: Cells of the name before a value: of a run's facts, and of settings and versions.
_SHORT = 10
_LONG = 30


def heading(text: str) -> Content:
    return Content.styled(text, f"bold {ink.NOW}")


def fact(name: str, value: str, width: int, style: str = "", label: int = _LONG) -> Content:
    """``  name          value``, cut to the width."""
    label = min(label, width * 2 // 5)
    named = (fit(clean(name), label), ink.DIM)
    return ink.row("  ", named, "  ", (crop(value, width - label - 4), style))


def section(title: str, rows: list[Content]) -> list[Content]:
    return [Content(""), heading(title), *rows] if rows else []


# ------------------------------------------------------------------------- one run


@dataclasses.dataclass(frozen=True)
class Known:
    """What is at hand of one run."""

    run: RunSummary
    standing: Standing
    """The fold of its events."""
    tail: tuple[Event, ...] = ()
    """Its newest events."""
    detail: RunDetail | None = None
    unfolded: bool = False
    """With every check of its preflight."""


def run_page(known: Known, state: State, width: int) -> list[Content]:
    """Everything known about a run."""
    run, standing, detail = known.run, known.standing, known.detail
    rows = [*_facts(run, state, width), *before_it(known, width)]
    error = standing.error or run.error
    if error is not None:
        rows += section("What happened first", error_rows(error, width))
    told = standing.throughput or (detail.throughput if detail is not None else None)
    if told is not None:
        rows += section("Where the time went", _throughput(told, standing, width))
    rows += section("Timeline", _timeline(known, state, width))
    if detail is None:
        return [*rows, Content(""), Content.styled("reading the rest from the host", ink.DIM)]
    rows += section("Preflight", _preflight(detail, width, known.unfolded))
    rows += section("Patches", _patches(detail, standing, width))
    rows += section("Profile", profile_rows(detail.resolved, width))
    rows += section("Environment", _environment(detail.environment, width))
    return rows


def _facts(run: RunSummary, state: State, width: int) -> list[Content]:
    symbol, colour = ink.OUTCOME[run.state]
    end = run.ended if run.ended is not None else state.host_now
    took = None if run.started is None else end - run.started
    facts = (
        ("attempt", f"{run.attempt} of {state.attempts(run)}"),
        ("engine", clean(run.engine)),
        ("model", clean(run.model) or formats.UNKNOWN),
        ("started", formats.moment(run.started, state.host_now)),
        ("duration", formats.duration(took)),
        ("samples", formats.samples(run.samples)),
        ("tokens", formats.count(run.tokens)),
        ("rate", f"{formats.rate(run.tokens_per_second)} mean"),
        ("written", formats.size(run.bytes)),
        ("output", clean(run.output_dir)),
    )
    head = fact("state", f"{symbol} {run.state}", width, f"bold {colour}", _SHORT)
    return [head, *(fact(name, value, width, "", _SHORT) for name, value in facts)]


def _throughput(told: Throughput, standing: Standing, width: int) -> list[Content]:
    parts = bounds.shares(told)
    if parts is None:
        return []
    bar = ink.row(*throughput.bar_parts(parts, max(10, min(72, width - 4))))
    rows = [ink.row("  ", line) for line in ink.spread(throughput.legend(parts), width - 2)]
    now = "" if standing.rate is None else f"{formats.rate(standing.rate)} now · "
    facts = (
        ("bound", bounds.words(told).removeprefix("bound ")),
        ("rate", f"{now}{formats.rate(bounds.model_rate(told))} mean of the model"),
        ("computed", bounds.computed(told)),
        *bounds.facts(told),
    )
    shown = [fact(name, value, width, "", _SHORT) for name, value in facts]
    return [ink.row("  ", bar), *rows, *shown]


def _timeline(known: Known, state: State, width: int) -> list[Content]:
    now = known.run.ended if known.run.ended is not None else state.host_now
    stages = stage_items(known.standing, now)
    rows = [ink.row("  ", item) for item in ink.spread(stages, width - 2)]
    return rows + [ink.row("  ", line) for line in event_rows(known.tail)]


def before_it(known: Known, width: int) -> list[Content]:
    """What the preflight of a run that went wrong already knew: where not to look again."""
    report = known.detail.preflight if known.detail is not None else None
    if known.detail is None or report is None or known.run.state not in WRONG:
        return []
    room = max(16, width - _SHORT - 4)
    told = textwrap.wrap(clean(already_known(report, known.detail.forced)), room)
    return [fact("" if i else "before it", line, width, "", _SHORT) for i, line in enumerate(told)]


def _preflight(detail: RunDetail, width: int, unfolded: bool) -> list[Content]:
    report = detail.preflight
    if report is None:
        return [fact("", "none was kept with this run", width)]
    rows = [ink.row("  ", headline(report))]
    if detail.forced:
        over = "started over " + ", ".join(map(clean, detail.forced))
        rows.append(ink.row("  ", (f"! {over}", ink.LOOK)))
    rows.append(Content(""))
    return rows + [ink.row("  ", line) for line in report_lines(report, width - 2, unfolded)]


def _patches(detail: RunDetail, standing: Standing, width: int) -> list[Content]:
    rows = []
    for finding in standing.patches or detail.patches:
        applied = finding.patch in standing.applied
        word = "✓ applied" if applied else finding.status.replace("-", " ")
        text = f"{word:<12}  {clean(finding.evidence)}"
        rows.append(fact(finding.patch, text, width, ink.GOOD if applied else ""))
    return rows


def _environment(environment: dict[str, Any], width: int) -> list[Content]:
    rows: list[Content] = []
    for key in sorted(environment):
        value = environment[key]
        if isinstance(value, dict):
            rows += [fact(f"{key}.{k}", clean(str(v)), width) for k, v in sorted(value.items())]
        else:
            rows.append(fact(key, clean(str(value)), width))
    return rows[:500]


# ------------------------------------------------------------------------- an error


def error_rows(error: ErrorInfo, width: int) -> list[Content]:
    """The exception and where it was raised."""
    said = folded("✗ " + error_headline(error, 4000), width - 2)
    rows = [ink.row("  ", (line, f"bold {ink.BAD}")) for line in said]
    rows += [ink.row("    ", clean(line)) for line in error.message.splitlines()[1:40]]
    if where(error):
        rows.append(ink.row("    ", (where(error), ink.DIM)))
    if error.where is not None and error.where.source:
        rows.append(ink.row("    ", ("▶ ", ink.NOW), clean(error.where.source.strip())))
    return [ink.cut(r, width) for r in rows]


@lru_cache(maxsize=4)
def traceback_rows(text: str, width: int) -> tuple[Content, ...]:
    """Every line, folded; kept, since thousands of lines are asked for again at each news."""
    return tuple(
        ink.cut(ink.row("    ", part), width)
        for line in clean_lines(text)
        for part in folded(line, width - 4)
    )


def errors_page(known: Known, state: State, width: int) -> list[Content]:
    """What happened first, in one screen; what followed from it is folded below."""
    run, standing = known.run, known.standing
    error = standing.error or run.error
    first = cause.known(standing, known.detail)
    rows = [ink.cut(_what_became(known, state), width), *before_it(known, width)]
    if first is not None:
        rows += section("What happened first", cause.cause_rows(first, width))
    elif error is not None:
        rows += section("What happened first", error_rows(error, width))
    elif run.state in ("failed", "lost"):
        rows += [Content(""), Content("  No exception was recorded; l shows the log.")]
    if error is not None and error.traceback:
        title = "Traceback of the run's own process, whole"
        rows += section(title, list(traceback_rows(error.traceback, width)))
    skipped = [e for e in known.tail if isinstance(e, Skipped)][-20:]
    if run.samples.skipped or standing.skipped or skipped:
        number = formats.count(max(run.samples.skipped, standing.skipped, len(skipped)))
        rows += section(f"Skipped: {number}, the newest of them", list(map(event_line, skipped)))
    rows += section("Warnings of this run", [event_line(w) for w in standing.warnings[-20:]])
    return rows


def _what_became(known: Known, state: State) -> Content:
    """``RUN 3 FAILED after 17:44, in extract, at sample 0``"""
    run = known.run
    took = None
    if run.started is not None:
        took = (run.ended if run.ended is not None else state.host_now) - run.started
    words = f"RUN {run.number} {run.state.upper()} after {formats.duration(took)}"
    stage = known.standing.failed_stage or (run.stage if run.error is not None else "")
    if stage:
        words += f", in {clean(stage)}"
    words += f", at sample {formats.count(run.samples.done)}"
    symbol, colour = ink.OUTCOME[run.state]
    return Content.styled(f"{symbol} {words}", f"bold {colour}")


# ------------------------------------------------------------------------- a profile


def profile_rows(profile: Profile, width: int) -> list[Content]:
    """Every setting as it was resolved, defaults included."""
    rows = [fact("name", clean(profile.name), width)]
    for part in dataclasses.fields(profile):
        value = getattr(profile, part.name)
        if not dataclasses.is_dataclass(value):
            continue
        for field in dataclasses.fields(value):
            shown = _setting(field.name, getattr(value, field.name))
            rows.append(fact(f"{part.name}.{field.name}", shown, width))
    return rows


def _setting(name: str, value: Any) -> str:
    if value is None:
        return formats.UNKNOWN
    if name.endswith("_bytes"):
        return formats.size(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(clean(str(v)) for v in value) + "]"
    if isinstance(value, dict):
        shown = scrub.environment({k: str(v) for k, v in value.items()})
        return "  ".join(f"{clean(k)}={clean(v)}" for k, v in shown.items()) or "{ }"
    return clean(str(value))
