"""The current run: what it is, which stage, how far, how fast, when done; or why it failed."""

from __future__ import annotations

from textual.content import Content

from eagle3_agent.protocol.fold import Standing
from eagle3_agent.protocol.values import ErrorInfo, Profile, RunSummary, StageTime
from eagle3_console import formats, stall
from eagle3_console.eta import Eta, estimate, overdue, shard_pace
from eagle3_console.hosttext import clean, crop, crop_left, first_line
from eagle3_console.store import ENDED, State

from . import ink, throughput
from .cause import cause_lines
from .panel import Panel

#: What an estimate is of.
_WHAT = {"load": "loaded in ", "shards": "all shards in ", "extract": "ETA "}
#: Seconds after which a figure of the disk says when it was taken.
_OLD = 120.0
#: The stages every run goes through; shown as still to come.
_ALWAYS = ("preflight", "load", "extract")


class RunPanel(Panel):
    PURE = True

    def lines(self, state: State, width: int) -> list[Content]:
        if state.run is None:
            return no_run(state, width)
        return run_lines(state, state.run, width)


def no_run(state: State, width: int) -> list[Content]:
    """What to do on a host that has never run anything."""
    if not state.runs_known:
        return [Content.styled("waiting for the list of runs", ink.DIM)]
    rows = [Content.styled("No run on this host yet", ink.STRONG)]
    if state.profile is not None:
        rows += will_run(state.profile, width)
        rows.append(ink.row(("s", ink.NOW), " checks the host and starts it"))
    else:
        rows += [Content.styled(line, ink.DIM) for line in NO_PROFILE]
    return rows


NO_PROFILE = (
    "No profile is loaded, so there is nothing to start.",
    "Leave with q and name one:  eagle3-console connect TARGET -p PROFILE",
)


def will_run(profile: Profile, width: int) -> list[Content]:
    """What a start would run, in one or two rows."""
    samples = "every sample" if profile.data.max_samples is None else ""
    samples = samples or f"{formats.count(profile.data.max_samples)} samples"
    layers = " ".join(map(str, profile.capture.layers))
    parts = [
        ink.row((clean(profile.name), ink.STRONG)),
        ink.row(("model ", ink.DIM), crop_left(clean(profile.model.path), 40)),
        ink.row(("layers ", ink.DIM), crop(layers, 30)),
        ink.row(("data ", ink.DIM), samples),
        ink.row(("output ", ink.DIM), crop_left(clean(profile.output.dir), 44)),
    ]
    return ink.spread(parts, width)


def run_lines(state: State, run: RunSummary, width: int) -> list[Content]:
    """The whole block."""
    standing = state.standing
    rows = [title(state, run, width)]
    stalled = stall.of(state)
    if stalled is not None:
        colour = ink.BAD if stalled.nothing_moves else ink.LOOK
        words, more = f"! {stalled.words}", "; l shows what it says"
        words += more if len(words + more) <= width else ""
        rows.append(Content.styled(words, f"bold {colour}"))
    if state.live:
        rows += _overdue(state, standing)
    if run.state == "queued":
        words = "· waits until the GPUs it needs are free; it starts by itself"
        return [*rows, Content.styled(words, ink.DIM)]
    rows += ink.spread(stage_items(standing, state.host_now), width)
    error = standing.error or run.error
    if standing.cause is not None:
        rows += cause_lines(standing.cause, width)
    elif error is not None:
        rows += error_lines(error, width)
    if run.state in ENDED:
        rows += _outcome(state, run, width)
    else:
        rows.append(progress(state, standing, width))
        rows += ink.spread(figures(state, standing), width)
        if standing.throughput is not None:
            rows += throughput.lines(standing.throughput, width)
    return rows


def _overdue(state: State, standing: Standing) -> list[Content]:
    past = state.past
    over = overdue(standing, state.host_now, past)
    if over is None or past is None or standing.stage is None:
        return []
    words = (
        f"! {standing.stage.name} takes {formats.duration(over)} longer than in run {past.run}; "
        "l shows what it says"
    )
    return [Content.styled(words, f"bold {ink.LOOK}")]


def title(state: State, run: RunSummary, width: int) -> Content:
    symbol, colour = ink.OUTCOME[run.state]
    left = ink.row(
        (f"{symbol} ", f"bold {colour}"),
        (f"RUN {run.number}", ink.STRONG),
        ("  " + crop(clean(run.profile), 36), ink.STRONG),
        (f"   attempt {run.attempt} of {state.attempts(run)}", ink.DIM),
        (f"   {clean(run.engine)}" if width >= 100 else "", ink.DIM),
        (f"   {run.state}", colour),
    )
    when = run.started if run.started is not None else run.created or None
    if when is None:
        return ink.cut(left, width)
    verb = "started" if run.started is not None else "created"
    words = f"{verb} {formats.moment(when, state.host_now)}"
    words += f", {formats.ago(state.host_now - when)}"
    return ink.ends(left, Content.styled(words, ink.DIM), width)


def stage_items(standing: Standing, host_now: float) -> list[Content]:
    """``preflight ✓ 2 s``, ``load ▶ 3/64 shards``, ``extract ·``."""
    newest = {s.name: s for s in standing.stages if s.name != "done"}  # a queued run checks twice
    items = [_stage(s, standing, host_now) for s in newest.values()]
    if standing.ended is None:
        begun = {s.name for s in standing.stages}
        items += [Content.styled(f"{n} ·", ink.DIM) for n in _ALWAYS if n not in begun]
    return items


def _stage(stage: StageTime, standing: Standing, host_now: float) -> Content:
    seconds = (stage.ended if stage.ended is not None else host_now) - stage.started
    took = formats.duration(seconds)
    if standing.failed_stage == stage.name and stage is _last(standing, stage.name):
        return ink.row((f"{stage.name} ✗ ", f"bold {ink.BAD}"), took)
    if standing.ended is not None and stage.ended == standing.ended.t and stage_cut(standing):
        return ink.row((f"{stage.name} ! ", f"bold {ink.LOOK}"), took)
    if stage.ended is not None:
        return ink.row((f"{stage.name} ", ink.DIM), ("✓ ", ink.GOOD), (took, ink.DIM))
    shards = ""
    if stage.name == "load" and standing.shards_total is not None:
        shards = f"{standing.shards_done or 0}/{standing.shards_total} shards "
    return ink.row((f"{stage.name} ▶ ", f"bold {ink.NOW}"), (shards, ink.STRONG), took)


def stage_cut(standing: Standing) -> bool:
    """Whether the run's end cut its last stage short: then that stage was not done."""
    return standing.ended is not None and standing.ended.state in ("aborted", "lost")


def _last(standing: Standing, name: str) -> StageTime | None:
    return next((s for s in reversed(standing.stages) if s.name == name), None)


def progress(state: State, standing: Standing, width: int) -> Content:
    """The bar of what goes on: shards while loading, samples while extracting."""
    stage = standing.stage.name if standing.stage else ""
    if stage == "load" and standing.shards_total:
        done, total, unit = standing.shards_done or 0, standing.shards_total, "shards"
    elif stage not in ("load", "preflight", "") and standing.total is not None:
        done, total, unit = standing.done, standing.total, "samples"
    else:
        return _by_time(state, standing, width)
    of = formats.count(total)
    label = f"   {formats.count(done):>{len(of)}} / {of} {unit}"
    fraction = done / total if total else None
    style = ink.NOW if done + standing.skipped < total else ink.GOOD
    return ink.row(*ink.bar(fraction, width - len(label), style), (label, ink.STRONG))


def _by_time(state: State, standing: Standing, width: int) -> Content:
    """The bar of a stage that counts nothing: its time against the same stage of an earlier run."""
    words = "   nothing to count yet"
    past, stage = state.past, standing.stage
    before = past.seconds(stage.name) if past is not None and stage is not None else None
    part = None
    if past is not None and stage is not None and before:
        part = min(1.0, (state.host_now - stage.started) / before)
        words = f"   {stage.name} took {formats.duration(before)} in run {past.run}"
    return ink.row(*ink.bar(part, width - len(words), ink.BAR), (words, ink.DIM))


def phase(standing: Standing) -> str:
    """What the load is at, as far as its events say: for the minutes in which none comes."""
    stage = standing.stage
    if stage is None or stage.name != "load" or stage.ended is not None:
        return ""
    if standing.shards_total is None:
        begun = "reading the data" if standing.total is None else "starting the engine"
        return f"{begun}; no shard yet"
    if (standing.shards_done or 0) >= standing.shards_total:
        return "all shards read; the engine makes ready (KV cache)"
    return "reading the shards"


def pace_words(standing: Standing) -> str:
    """``3.9 shards/s``, or ``12 s a shard`` when they are slow."""
    pace = shard_pace(standing)
    if pace is None:
        return ""
    if pace < 1:
        return f"{1 / pace:.1f} shards/s"
    return f"{pace:.0f} s a shard" if pace < 100 else f"{formats.duration(pace)} a shard"


def _load_figures(state: State, standing: Standing, eta: Eta | None) -> list[Content]:
    now = phase(standing)
    items = [Content(words) for words in (now, pace_words(standing)) if now and words]
    if eta is not None:
        items.append(eta_words(state, eta))
    if standing.total is not None:
        planned = [f"{formats.count(standing.total)} samples"]
        if standing.planned_tokens is not None:
            planned.append(f"{formats.count(standing.planned_tokens)} tokens")
        if standing.planned_bytes is not None:
            planned.append(formats.size(standing.planned_bytes))
        items.append(Content.styled("then " + " · ".join(planned), ink.DIM))
    return items


def figures(state: State, standing: Standing) -> list[Content]:
    """Rates with their window, the ETA with its basis and hour, bytes, what was skipped."""
    stalled = stall.of(state)
    still = stalled is not None and stalled.nothing_moves
    eta = None if still else estimate(standing, state.host_now, state.past)
    if standing.stage_seconds("extract") is None and not standing.tokens:
        return _load_figures(state, standing, eta)
    now = formats.rate(standing.rate)
    over = f" over {standing.window:.0f} s" if standing.window else " now"
    if stalled is not None:  # the last figure is of another time
        now, over = formats.rate(0), f" for {formats.duration(stalled.seconds)}"
    mean = standing.mean_rate()
    items = [
        ink.row(
            (now, ink.STRONG),
            (over if standing.rate is not None else "", ink.DIM),
            (f" · {formats.rate(mean).removesuffix(' tok/s')} mean", ink.DIM),
        ),
        eta_words(state, eta),
    ]
    written = formats.size(standing.bytes)
    of = f" of {formats.size(standing.planned_bytes)}" if standing.planned_bytes else ""
    items.append(ink.row(written, (f"{of} written", ink.DIM)))
    left = disk_left(standing, state.host_now)
    if left is not None:
        items.append(left)
    skipped = standing.skipped
    items.append(
        ink.row((f"! {skipped} skipped", ink.LOOK)) if skipped else ink.row(("0 skipped", ink.DIM))
    )
    if standing.reused:
        items.append(Content.styled(f"{formats.count(standing.reused)} kept from before", ink.DIM))
    return items


def disk_left(standing: Standing, host_now: float) -> Content | None:
    """``3.1 TiB left`` on the output's disk; a warning when what is still planned does not fit."""
    told = standing.throughput
    if told is None or told.disk_free is None:
        return None
    free, age = told.disk_free, host_now - told.t
    ago = f" {formats.ago(age)}" if age > _OLD else ""
    rest = None
    if standing.planned_bytes is not None:
        rest = max(0, standing.planned_bytes - standing.bytes)
    if rest is not None and rest > free:
        words = f"! {formats.size(free)} left{ago}, {formats.size(rest)} to write"
        return Content.styled(words, f"bold {ink.LOOK}")
    return ink.row(formats.size(free), (f" left{ago}", ink.DIM))


def eta_words(state: State, eta: Eta | None) -> Content:
    """``ETA 18:05 at 14:20 (mean of this run)``; the hour is the workstation's."""
    if eta is None:
        return ink.row(("ETA ", ink.DIM), formats.UNKNOWN)
    what = _WHAT.get(eta.stage) or f"{eta.stage} done in "
    at = f" at {formats.clock_minutes(state.now + eta.seconds)}" if eta.seconds >= 60 else ""
    return ink.row(
        (what, ink.DIM),
        (formats.duration(eta.seconds), ink.STRONG),
        (f"{at} ({eta.basis})", ink.DIM),
    )


def _outcome(state: State, run: RunSummary, width: int) -> list[Content]:
    """The last word on a run that has ended: what there is, how long it took, where it lies."""
    symbol, colour = ink.OUTCOME[run.state]
    took = None
    if run.started is not None and run.ended is not None:
        took = run.ended - run.started
    samples = run.samples
    items = [
        ink.row((f"{symbol} {run.state}", f"bold {colour}"), f" after {formats.duration(took)}")
    ]
    total = f" / {formats.count(samples.total)} samples"
    items.append(ink.row((formats.count(samples.done), ink.STRONG), (total, ink.DIM)))
    if samples.skipped:
        items.append(Content.styled(f"! {formats.count(samples.skipped)} skipped", ink.LOOK))
    items.append(ink.row(formats.count(run.tokens), (" tokens", ink.DIM)))
    items.append(ink.row(formats.rate(run.tokens_per_second), (" mean", ink.DIM)))
    items.append(ink.row(formats.size(run.bytes), (" written", ink.DIM)))
    if state.standing.reused:
        items.append(ink.row(formats.count(state.standing.reused), (" kept from before", ink.DIM)))
    rows = ink.spread(items, width)
    ended = state.standing.ended
    if ended is not None and ended.survivors:
        pids = " ".join(map(str, ended.survivors[:8]))
        rows.append(Content.styled(f"✗ still there after KILL: pid {pids}", f"bold {ink.BAD}"))
    if run.state in ("lost", "aborted") and ended is not None and ended.text:
        rows.append(Content.styled(crop(clean(ended.text), width), ink.DIM))
    if run.state == "lost" and ended is None:
        words = "its supervisor is gone and left no word; the log may say more"
        rows.append(Content.styled(words, ink.DIM))
    folder = crop_left(clean(run.output_dir), max(10, width - 8))
    rows.append(ink.row(("output  ", ink.DIM), folder))
    return rows


def error_lines(error: ErrorInfo, width: int) -> list[Content]:
    """What the exception said, and the line that raised it: readable with an empty message too."""
    rows = [
        ink.row(("✗ ", f"bold {ink.BAD}"), (error_headline(error, width - 2), f"bold {ink.BAD}"))
    ]
    facts = where(error)
    if facts:
        rows.append(ink.row("  ", (crop(facts, width - 2), ink.DIM)))
    if error.where is not None and error.where.source:
        rows.append(ink.row("    ", crop(clean(error.where.source.strip()), width - 4)))
    return rows


def error_headline(error: ErrorInfo, width: int) -> str:
    """``RuntimeError: Boolean value …``; an empty message says that it is empty."""
    text = f"{clean(error.type)}: {first_line(error.message) or '(no message)'}"
    return crop(text, width)


def where(error: ErrorInfo) -> str:
    """``rank 0 · vllm_hidden_states_generator.py:273 in step``"""
    parts = [] if error.rank is None else [f"rank {error.rank}"]
    if error.where is not None:
        name = clean(error.where.file).rsplit("/", 1)[-1]
        place = f"{name}:{error.where.line}"
        if error.where.function:
            place += f" in {clean(error.where.function)}"
        parts.append(place)
    return " · ".join(parts)
