"""What would run, and the question whether it shall; No has the focus."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from eagle3_agent.protocol.values import Profile, RunDetail
from eagle3_console import formats, profile_edit, scrub
from eagle3_console.hosttext import clean
from eagle3_console.profile_settings import BY_KEY
from eagle3_console.store import State
from eagle3_console.verdicts import counts
from eagle3_console.widgets import ink

from .confirm import ConfirmScreen

#: (name, value, style)
Fact = tuple[str, str, str]

_FILES = ("output.format", "output.writer_threads", "output.buffer")
_ENGINE = tuple(key for key in BY_KEY if key.startswith("engine."))

#: Cells of a fact's name.
_NAME = 11
#: The check that foretells the bytes of a run against the room on the disk.
_DISK = "disk"
#: Layers, variables and the like: more rows than this for one fact help nobody.
_ROWS = 6


class StartScreen(ConfirmScreen):
    """Everything that decides what a run does, before it does it."""

    DEFAULT_CSS = """
    StartScreen > Vertical { width: 100; border: round $accent; }
    StartScreen #said { scrollbar-size-vertical: 1; }
    """

    def __init__(self, title: str, facts: Sequence[Fact], yes: str) -> None:
        super().__init__(title, (), yes)
        self.facts = facts

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Content(clean(self.question)), id="title")
            with VerticalScroll(id="said", can_focus=False):
                yield Static(id="facts")
            with Horizontal():
                yield Button(Content("No (n)"), id="no", compact=True)
                yield Button(Content(f"{self.yes} (y)"), id="yes", compact=True)

    def on_mount(self) -> None:
        super().on_mount()
        self._draw()

    def on_resize(self) -> None:
        super().on_resize()
        self._draw()

    def _draw(self) -> None:
        width = min(100, self.size.width * 96 // 100) - 8
        rows = [row for fact in self.facts for row in fact_rows(*fact, width)]
        self.query_one("#facts", Static).update(Content("\n").join(rows))


def fact_rows(name: str, value: str, style: str, width: int) -> list[Content]:
    """``name  value``, wrapped under itself: a path that is cut tells the wrong folder."""
    value = clean(value)
    room = max(16, width - _NAME - 1)
    lines = textwrap.wrap(value, room, break_on_hyphens=False, replace_whitespace=False) or [""]
    if len(lines) > _ROWS:
        lines = [*lines[: _ROWS - 1], f"and {len(lines) - _ROWS + 1} more lines"]
    return [
        ink.row((f"{'' if i else name:<{_NAME}} ", ink.DIM), (line, style))
        for i, line in enumerate(lines)
    ]


def start_facts(state: State, profile: Profile) -> list[Fact]:
    """(name, value, style) of what a start of ``profile`` would run; changes are marked."""
    origin = state.profile_path or "no file"
    if state.profile_run:
        origin = f"run {state.profile_run}" + (
            f", on {state.profile_path}" if state.profile_path else ""
        )
    facts = [("profile", f"{profile.name}, from {origin}", ink.STRONG)]
    facts += [("changed", words, ink.LOOK) for words in _changed(state)]
    runs, how = what_runs(profile, state.overrides)
    return [*facts, *runs, ("GPUs", _gpus(state, profile), ""), *_checked(state), *how]


def what_runs(profile: Profile, marked: Container[str] = ()) -> tuple[list[Fact], list[Fact]]:
    """What a profile computes from what and into where; and by what means.

    Values of ``marked`` keys stand out.
    """

    def fact(name: str, value: str, *keys: str) -> Fact:
        return name, value, ink.LOOK if any(key in marked for key in keys) else ""

    model, data, output, engine = profile.model, profile.data, profile.output, profile.engine
    code = ", its own Python code trusted" if model.trust_remote_code else ""
    samples = "every sample"
    if data.max_samples is not None:
        samples = f"{formats.count(data.max_samples)} samples"
    longer = "cut" if data.too_long == "truncate" else "skipped"
    with_script = f" {engine.script} {' '.join(engine.args)}" if engine.script else ""
    limits = [
        f"{formats.count(number)} {what}"
        for number, what in (
            (engine.max_num_batched_tokens, "tokens a step"),
            (engine.max_num_seqs, "samples in flight"),
        )
        if number is not None
    ]
    kind = f"dtype {model.dtype}, room for {formats.count(model.max_model_len)} tokens{code}"
    long = f"{samples} of at most {formats.count(data.seq_length)} tokens, longer ones {longer}"
    script = scrub.text(with_script)
    runs = [
        fact("model", model.path, "model.path"),
        fact("engine", ", ".join([engine.name + script, *limits]), *_ENGINE),
        fact("layers", " ".join(map(str, profile.capture.layers)), "capture.layers"),
        fact("data", data.path, "data.path"),
        fact("samples", long, "data.max_samples", "data.seq_length", "data.too_long"),
        fact("output", output.dir, "output.dir"),
    ]
    writers = "" if output.writer_threads is None else f", {output.writer_threads} writers"
    buffer = "" if output.buffer_bytes is None else f", buffer {formats.size(output.buffer_bytes)}"
    how = [
        fact("files", f"{output.format}{writers}{buffer}", *_FILES),
        fact("weights", kind, "model.dtype", "model.max_model_len", "model.trust_remote_code"),
        fact("python", profile.host.python, "host.python"),
        *(fact(name, value, "host.env") for name, value, _ in _env(profile)),
    ]
    return runs, how


def _changed(state: State) -> list[str]:
    return [
        f"{words}   (not in the file)"
        for words in profile_edit.as_sets(scrub.value(dict(state.overrides)))
    ]


def _gpus(state: State, profile: Profile) -> str:
    wanted = profile.model.tensor_parallel_size
    share = f"{profile.model.gpu_memory_utilization:.0%} of each one's memory"
    if state.host is None:
        return f"{wanted}, {share}; the host's are not known yet"
    there = state.host.gpus
    if not there:
        return f"{wanted}, {share}; the host shows none"
    names = ", ".join(dict.fromkeys(gpu.name for gpu in there if gpu.name)) or "unnamed"
    return f"{wanted} of {len(there)} × {names}, {share}"


def _env(profile: Profile) -> list[Fact]:
    shown = scrub.environment(profile.host.env)
    return [("" if i else "env", f"{k}={v}", "") for i, (k, v) in enumerate(shown.items())]


def _checked(state: State) -> list[Fact]:
    """What the newest preflight of this profile says of it, the disk first."""
    report = state.checks.report
    if report is None:
        return [("checks", "not checked yet; the start checks first, and a block stops it", "")]
    disk = [v for v in report.verdicts if v.check == _DISK]
    facts = [("disk", v.saw, ink.BAD if v.status == "block" else "") for v in disk]
    told = ", ".join(words for _, words in counts(report))
    ago = formats.ago(max(0.0, state.host_now - report.at))
    style = ink.BAD if report.blocking else ink.GOOD
    return [*facts, ("checks", f"{told}, {ago}; the start checks again", style)]


def resume_facts(state: State, detail: RunDetail) -> list[Fact]:
    """What a new attempt of an ended run keeps, and what it would run."""
    run = detail.summary
    kept = f"{formats.samples(run.samples, ' samples')} done, {formats.size(run.bytes)} written"
    facts = [
        ("run", f"{run.number}, {run.profile}, attempt {run.attempt}: {run.state}", ink.STRONG),
        ("kept", f"{kept}; each file is checked, and what is whole is not computed again", ""),
    ]
    if run.samples.skipped:
        facts.append(("again", f"{formats.count(run.samples.skipped)} skipped samples", ""))
    if state.profile is not None and state.profile != detail.resolved:
        words = f"run {run.number}'s own, in the place of the loaded {state.profile.name}"
        facts.append(("profile", words, ink.LOOK))
    runs, how = what_runs(detail.resolved)
    return [*facts, *runs, ("GPUs", _gpus(state, detail.resolved), ""), *how]
