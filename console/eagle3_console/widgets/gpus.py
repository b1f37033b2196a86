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
#: A core this hot (degrees Celsius) is worth a look.
_HOT = 88


class GpuPanel(Panel):
    """One row a GPU; two GPUs a row when the screen is too low for all of them."""

    def lines(self, state: State, width: int) -> list[Content]:
        return host_lines(state, width, self.app.size.height)


def host_lines(state: State, width: int, height: int) -> list[Content]:
    """The block for a screen of ``height`` rows."""
    sample = state.host
    if sample is None:
        return [Content.styled("waiting for the first sample of this host", ink.DIM)]
    if not sample.gpus:
        return _without_gpus(state, sample, width)
    if len(sample.gpus) > 8 and len(sample.gpus) + 14 > height and width >= 76:
        return _paired(state, sample, width)
    columns = _Columns(width)
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

    def __init__(self, width: int) -> None:
        self.width = width
        self.heat = width >= 66
        rest = width - _INDEX - _FIGURES - (_HEAT if self.heat else 0)
        self.holders = 0
        if width >= 150:
            self.holders = min(44, width // 5)
            rest -= self.holders + 3
        self.spark = (rest - 3) // 2 if width >= 96 else (10 if rest >= 32 else 0)
        self.spark = min(self.spark, 60)
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
            parts += ["  ", fit("temp", 4, right=True), "  ", fit("power", 6, right=True)]
        if self.spark:
            parts += ["   ", fit(phases(state, self.spark), self.spark)]
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
            watts = formats.UNKNOWN if gpu.power is None else f"{formats.count(gpu.power)} W"
            parts.append((fit(watts, 6, right=True), ink.DIM))
        if self.spark:
            points = state.history.get(f"gpu:{gpu.index}", ())
            line = ink.spark(points, state.host.t if state.host else 0.0, self.spark)
            parts += ["   ", (line, ink.SPARK)]
        if self.holders:
            parts += ["   ", (fit(holder(gpu), self.holders), ink.DIM)]
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


def temperature(gpu: Gpu) -> Content:
    if gpu.temperature is None:
        return Content.styled(fit(formats.UNKNOWN, 4, right=True), ink.DIM)
    hot = gpu.temperature >= _HOT
    text = fit(f"{'!' if hot else ''}{gpu.temperature}°", 4, right=True)
    return Content.styled(text, ink.LOOK if hot else ink.DIM)


def holder(gpu: Gpu) -> str:
    """The process that holds most memory, and how many others do."""
    if not gpu.processes:
        return ""
    first = max(gpu.processes, key=lambda p: p.bytes or 0)
    more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
    return f"{clean(first.command)} · pid {first.pid} · {clean(first.user)}{more}"


def phases(state: State, width: int) -> str:
    """What stands over the history: the names of the run's stages where they began."""
    now = state.host.t if state.host else 0.0
    plain = "last 10 min" if width > 10 else "10 min"
    if width < 20:
        return plain
    text = [" "] * width
    found = False
    last = -2
    for stage in state.standing.stages:
        ago = now - stage.started
        if not 0 <= ago < HISTORY:
            continue
        column = width - 1 - int(ago / HISTORY * width)
        seconds = (stage.ended if stage.ended is not None else now) - stage.started
        brief = stage.ended is not None and seconds < 3 * HISTORY / width
        if brief or stage.name == "done" or not 0 <= column < width or column <= last:
            continue
        label = f"▏{stage.name}"
        if column + len(label) > width:
            continue
        text[column : column + len(label)] = label
        last, found = column + len(label), True
    if not found:
        return plain
    return (
        "".join(text)
        if text[: len(plain)] != [" "] * len(plain)
        else plain + "".join(text[len(plain) :])
    )


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
