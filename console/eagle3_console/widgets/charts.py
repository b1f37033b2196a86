"""The host's last minutes as charts several rows high, for screens with room beside the events."""

from __future__ import annotations

from textual.content import Content

from eagle3_agent.protocol.values import HostSample
from eagle3_console import formats
from eagle3_console.hosttext import fit
from eagle3_console.store import State

from . import ink
from .gpus import phases, span
from .panel import Panel

#: Cells left of a chart: the name and the newest value.
_LABEL = 14
#: Rows of one chart.
_LEAST, _MOST = 2, 6


class ChartsPanel(Panel):
    """As many charts as fit, from the first GPU on."""

    DEFAULT_CSS = """
    ChartsPanel { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[object, ...] = ()
        self._kept: list[Content] = []

    def lines(self, state: State, width: int) -> list[Content]:
        # asked for more often than there is a sample, and the dearest rows of the screen
        height = self.content_size.height
        of = (state.history, state.host, state.standing, width, height)
        if len(of) != len(self._of) or any(a is not b for a, b in zip(of, self._of)):
            self._of, self._kept = of, chart_lines(state, width, height)
        return self._kept

    def get_content_height(self, *_: object) -> int:
        return max(1, self.content_size.height)


def chart_lines(state: State, width: int, height: int) -> list[Content]:
    """Charts of utilisation in percent, under one row that names the run's stages."""
    sample = state.host
    named = _named(sample) if sample else []
    columns = width - _LABEL
    if sample is None or not named or columns < 20 or height < _LEAST + 2:
        return []
    room = (height - 2) // len(named)
    rows = max(_LEAST, min(_MOST, room - 1 if room > _LEAST else room))
    gap = rows < room
    shown = span(state, columns)
    head = fit("GPU busy" if sample.gpus else "busy", _LABEL)
    made = [Content.styled(head + phases(state, columns, shown), ink.DIM)]
    for key, name, value in named:
        points = state.history.get(key, ())
        drawn = ink.chart(points, sample.t, columns, rows, shown)
        if len(made) + len(drawn) > height:
            break
        for number, line in enumerate(drawn):
            label: ink.Part = " " * _LABEL
            if number == rows - 1:
                label = ink.row(
                    (fit(name, 7), ink.STRONG), fit(formats.percent(value), 6, right=True), " "
                )
            style = f"{ink.SPARK} on {ink.RAIL}" if number == rows - 1 else ink.SPARK
            made.append(ink.row(label, (line, style)))
        if gap:
            made.append(Content(""))
    return made[:height]


def _named(sample: HostSample) -> list[tuple[str, str, float | None]]:
    """(key of the history, name, newest value) of what is charted."""
    gpus = [(f"gpu:{g.index}", f"GPU {g.index}", g.utilization) for g in sample.gpus if not g.error]
    if gpus:
        return [(key, name, None if value is None else float(value)) for key, name, value in gpus]
    return [("cpu", "CPU", sample.cpu_percent)]
