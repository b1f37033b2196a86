"""The host's GPUs as aligned rows; a host without any: its CPU and memory.

Only numbers that the host said are shown; the others are ``-``.
"""

from __future__ import annotations

from textual.content import Content

from eagle3_agent.protocol.values import Gpu, HostSample
from eagle3_console import formats
from eagle3_console.hosttext import clean, crop, fit
from eagle3_console.store import HISTORY, State

from . import ink
from .panel import Panel

#: ``NN`` of the index, and the figures right of the bar with their gaps.
_INDEX = 5
_MEMORY = 16
_FIGURES = 2 + _MEMORY + 2 + 5
_HEAT = 2 + 4 + 2 + 6
#: Seconds of history that a line may show while the run is young, then ``HISTORY`` on long lines.
_SPANS = (120.0, 300.0, 600.0)
_LONG_LINE = 40
#: A stage over fewer columns than these is not named.
_BRIEF = 3
#: Memory in use (bytes) that needs no process to explain it.
_SMALL = 256 * 1024 * 1024
#: A core this hot (degrees Celsius) is worth a look.
_HOT = 88


class GpuPanel(Panel):
    """One row a GPU; two GPUs a row when the screen is too low for all of them."""

    PURE = True

    def lines(self, state: State, width: int) -> list[Content]:
        return host_lines(state, width, self.app.size.height)


def has_charts(width: int, height: int) -> bool:
    """Whether a screen of this size shows the history as charts, not in the GPU rows."""
    return width >= 150 and height >= 45


def host_lines(state: State, width: int, height: int) -> list[Content]:
    """The block for a screen of ``height`` rows."""
    sample = state.host
    if sample is None:
        words = "waiting for the first sample of this host"
        if state.kept_at is not None:
            words = "no figures of the host itself: it cannot be reached"
        return [Content.styled(words, ink.DIM)]
    if not sample.gpus:
        return _without_gpus(state, sample, width)
    if len(sample.gpus) > 8 and len(sample.gpus) + 14 > height and width >= 76:
        return _paired(state, sample, width)
    columns = _Columns(width, spark=not has_charts(width, height))
    rows = [columns.header(state)]
    rows += [columns.gpu(gpu, state) for gpu in sample.gpus]
    if height >= len(sample.gpus) + 22:
        rows.append(host_line(sample))
    return rows


def host_line(sample: HostSample) -> Content:
    """CPU, memory and load of the host in one dim row."""
    parts = [f"cpu {formats.percent(sample.cpu_percent)} of {sample.cpu_count or '-'} cores"]
    memory = f"{formats.gib(sample.memory_used)} / {formats.gib(sample.memory_total)} GiB"
    parts.append(f"memory {memory}")
    if sample.load is not None:
        parts.append(f"load {sample.load:.1f}")
    return Content.styled("host " + " · ".join(parts), ink.DIM)


class _Columns:
    """Where the columns of the GPU rows stand at one width."""

    def __init__(self, width: int, spark: bool = True) -> None:
        self.width = width
        self.heat = width >= 66
        self.limit = width >= 150
        """Whether there is room for the limit behind the power."""
        self.watts = 14 if self.limit else 6
        rest = width - _INDEX - _FIGURES - (_HEAT - 6 + self.watts if self.heat else 0)
        self.holders = 0
        if width >= 150:
            self.holders = min(64, width // 3)
            rest -= self.holders + 3
        self.spark = (rest - 3) // 2 if width >= 96 else (10 if rest >= 32 else 0)
        self.spark = min(self.spark, 90 if self.holders else 60) if spark else 0
        self.bar = max(4, min(rest - (self.spark + 3 if self.spark else 0), 64))

    def header(self, state: State) -> Content:
        parts: list[ink.Part] = [
            fit("GPU", _INDEX),
            fit("memory", self.bar),
            "  ",
            fit("GiB used / total", _MEMORY, right=True),
            "  ",
            fit("util", 5, right=True),
        ]
        if self.heat:
            parts += ["  ", fit("temp", 4, right=True), "  "]
            parts.append(fit("power of limit" if self.limit else "power", self.watts, right=True))
        if self.spark:
            parts += ["   ", fit(phases(state, self.spark, span(state, self.spark)), self.spark)]
        if self.holders:
            parts += ["   ", fit("held by", self.holders)]
        return Content.styled(ink.row(*parts).plain, ink.DIM)

    def gpu(self, gpu: Gpu, state: State) -> Content:
        parts: list[ink.Part] = [(fit(f"{gpu.index:>2}", _INDEX), ink.STRONG)]
        if gpu.error:
            words = crop("! " + clean(gpu.error), self.width - _INDEX)
            return ink.row(*parts, (words, ink.BAD))
        parts += [*ink.bar(_fraction(gpu), self.bar, ink.BAR), "  ", memory(gpu)]
        parts += ["  ", fit(formats.percent(gpu.utilization), 5, right=True)]
        if self.heat:
            parts += ["  ", temperature(gpu), "  "]
            parts.append((fit(power(gpu, self.limit), self.watts, right=True), ink.DIM))
        if self.spark:
            points = state.history.get(f"gpu:{gpu.index}", ())
            now = state.host.t if state.host else 0.0
            line = ink.spark(points, now, self.spark, span(state, self.spark))
            parts += ["   ", (line, ink.SPARK)]
        if self.holders:
            told = holder(gpu, state.host_now)
            parts += ["   ", (fit(told, self.holders), ink.DIM)]
        return ink.row(*parts)


def _fraction(gpu: Gpu) -> float | None:
    if gpu.memory_used is None or not gpu.memory_total:
        return None
    return gpu.memory_used / gpu.memory_total


def memory(gpu: Gpu) -> Content:
    """``    71.2 /  95.6``, 16 cells."""
    used = fit(formats.gib(gpu.memory_used), 8, right=True)
    total = fit(formats.gib(gpu.memory_total), 5, right=True)
    return ink.row(used, (" / ", ink.DIM), (total, ink.DIM))


def power(gpu: Gpu, with_limit: bool) -> str:
    """``412 W``, or ``412 / 600 W``."""
    drawn = formats.count(gpu.power)
    if not with_limit or gpu.power_limit is None:
        return drawn if gpu.power is None else f"{drawn} W"
    return f"{drawn} / {formats.count(gpu.power_limit)} W"


def temperature(gpu: Gpu) -> Content:
    if gpu.temperature is None:
        return Content.styled(fit(formats.UNKNOWN, 4, right=True), ink.DIM)
    hot = gpu.temperature >= _HOT
    text = fit(f"{'!' if hot else ''}{gpu.temperature}°", 4, right=True)
    return Content.styled(text, ink.LOOK if hot else ink.DIM)


def holder(gpu: Gpu, now: float) -> str:
    """The process that holds most memory, since when, and how many others do."""
    if not gpu.processes:
        return "nobody" if (gpu.memory_used or 0) < _SMALL else "no process that can be seen"
    first = max(gpu.processes, key=lambda p: p.bytes or 0)
    more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
    age = "" if first.started is None else f" · {formats.duration(now - first.started)}"
    held = "" if first.bytes is None else f" · {formats.gib(first.bytes)} GiB"
    who = f"pid {first.pid} · {clean(first.user)}"
    return f"{crop(clean(first.command), 24)} · {who}{held}{age}{more}"


def span(state: State, width: int) -> float:
    """Seconds that the history line shows: a young run, or what is known, from its beginning."""
    stages = state.standing.stages
    begun = [stages[0].started] if stages else [p[0].t for p in state.history.values() if p]
    age = state.host_now - min(begun, default=0.0)
    for seconds in _SPANS:
        if age < 0.95 * seconds:
            return seconds
    return HISTORY if width >= _LONG_LINE else _SPANS[-1]


def phases(state: State, width: int, shown: float) -> str:
    """What stands over the history: its length, and the run's stages where they began."""
    now = state.host.t if state.host else 0.0
    minutes = f"{shown / 60:.0f} min"
    plain = f"last {minutes}" if width > 10 else minutes
    if width < 20:
        return plain
    text = plain
    for stage in state.standing.stages:
        begun = _column(now - stage.started, shown, width)
        end = width if stage.ended is None else _column(now - stage.ended, shown, width)
        column = max(begun, len(text) + 1)
        if stage.name == "done" or end - max(begun, 0) < _BRIEF or not column < min(end, width - 3):
            continue
        label = f"{'▏' if column == begun else ' '}{stage.name}"
        text = text.ljust(column) + crop(label, width - column)
    return text


def _column(ago: float, shown: float, width: int) -> int:
    """Where a moment stands on a line of ``shown`` seconds; -1 for what is older than it."""
    if ago < 0:
        return width
    return width - 1 - int(ago / shown * width) if ago < shown else -1


def _paired(state: State, sample: HostSample, width: int) -> list[Content]:
    """Two GPUs a row: bar, GiB and utilisation."""
    half = (width - 3) // 2
    bar = half - 4 - 1 - 13 - 1 - 5
    cells = [_short(gpu, half, bar) for gpu in sample.gpus]
    middle = (len(cells) + 1) // 2
    rows = [Content.styled(f"{len(cells)} GPUs · memory, GiB used / total, utilisation", ink.DIM)]
    for i in range(middle):
        right = cells[i + middle] if i + middle < len(cells) else Content("")
        rows.append(ink.row(cells[i], "   ", right))
    return rows


def _short(gpu: Gpu, width: int, bar: int) -> Content:
    index = (fit(f"{gpu.index:>2}", 4), ink.STRONG)
    if gpu.error:
        return ink.row(index, (fit("! " + clean(gpu.error), width - 4), ink.BAD))
    used = fit(formats.gib(gpu.memory_used), 6, right=True)
    total = fit(formats.gib(gpu.memory_total), 5, right=True)
    percent = fit(formats.percent(gpu.utilization), 5, right=True)
    parts = [
        *ink.bar(_fraction(gpu), bar, ink.BAR),
        " ",
        used,
        ("/ " + total, ink.DIM),
        " ",
        percent,
    ]
    return ink.row(index, *parts)


def _without_gpus(state: State, sample: HostSample, width: int) -> list[Content]:
    words = clean(sample.gpu_problem) or "no NVIDIA GPU on this host"
    figures, label = (34 if width >= 96 else 24), 8
    rest = width - label - figures - 2
    line = (rest - 3) // 2 if width >= 96 else (12 if rest >= 34 else 0)
    line = min(line, 60)
    bar = max(4, min(rest - (line + 3 if line else 0), 64))
    cpu = None if sample.cpu_percent is None else sample.cpu_percent / 100
    used, total = sample.memory_used, sample.memory_total
    ram = used / total if used is not None and total else None
    cores = f"{formats.percent(sample.cpu_percent):>5} of {sample.cpu_count or '-'} cores"
    load = f" · load {sample.load:.1f}" if sample.load is not None and width >= 96 else ""
    gib = f"{formats.gib(used)} / {formats.gib(total)} GiB"
    rows = [
        ink.cut(ink.row(("· ", ink.DIM), ("no GPU  ", ink.STRONG), (words, ink.DIM)), width),
    ]
    for name, part, text, key in (
        ("CPU", cpu, cores + load, "cpu"),
        ("memory", ram, gib, "memory"),
    ):
        parts: list[ink.Part] = [(fit(name, label), ink.STRONG), *ink.bar(part, bar, ink.BAR)]
        parts += ["  ", fit(text, figures)]
        if line:
            history = state.history.get(key, ())
            parts += ["   ", (ink.spark(history, sample.t, line), ink.SPARK)]
        rows.append(ink.row(*parts))
    return rows
