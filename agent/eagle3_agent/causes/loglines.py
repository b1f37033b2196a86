"""One line of a run's log: which process wrote it, at what level, and what it says; pure.

The shapes are those of vLLM 0.11 to 0.32 (``(Worker_TP3 pid=99) ERROR 11-30 12:00:00 [core.py:9]
text``), of torchrun (``[rank3]: text``), of Ray and of Python's logging.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Characters of a line that are looked at: what matters stands at its beginning.
LOOKED_AT = 4096

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\-_])")
#: What is left then and would do something to a terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: ``(EngineCore_DP0 pid=12) ``, ``(VllmWorker rank=3 pid=12) ``, Ray's likewise
_PROCESS = re.compile(r"\(([A-Za-z_][\w.-]{0,60}) ((?:rank=\d{1,5},? )?pid=\d{1,10}[^)]{0,60})\) ?")
_TORCHRUN = re.compile(r"\[rank(\d{1,5})\]:(?: |(?=\[)|$)")
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? "
    r"(?:\[[^\]\s]{1,80}\]|[\w.]{1,60}:\d{1,6}\])(?: |$)"
)
_STANDARD = re.compile(
    r"(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*)(?: -| \|)? ?\[?"
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\]?(?: - [\w.]{1,80} -| *\||:)? ?"
)
#: A progress bar that another line was written behind: ``… | 3/9 [00:00<00:02,  3.5it/s]``
_BAR = re.compile(
    r".{0,300}?\[(?:\d{1,4}:)?\d\d:\d\d(?:<[^\],]{1,20})?, {0,4}[^\]]{0,120}"
    r"(?:/s|s/it)(?:, [^\]]{0,120})?\]"
)
_RANK = re.compile(r"(?:TP|[Rr]ank=?|VllmWorker-|Worker-)(\d{1,5})(?!\d)")


@dataclass(frozen=True)
class Line:
    """A line taken apart."""

    process: str
    """As the line names it, ``Worker_TP3 pid=99``; empty for the process that wrote no name."""
    level: str
    """``ERROR`` and the like; empty where the line has none."""
    text: str
    """The rest, with its indentation."""
    stamp: str = ""
    """Level, time and place as the logger wrote them: the same on every line of one record."""
    bar: bool = False
    """A progress bar stood before the text, or is all there is."""
    owed: str = ""
    """A process whose prefix stands before another's: its text is on the next line."""


def decode(data: bytes) -> str:
    """What a terminal would show of a line in plain text, at most ``LOOKED_AT`` characters."""
    body = data[-8 * LOOKED_AT :] if b"\r" in data else data[: 4 * LOOKED_AT]
    body = body.rstrip(b"\r\n").rsplit(b"\r", 1)[-1]
    text = body.decode("utf-8", "replace")
    if not text.isprintable():
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text[:LOOKED_AT]


def parse(text: str) -> Line:
    """Take prefixes and bars off, in whatever order; the last process named wrote the line."""
    process = level = stamp = owed = ""
    bar = False
    at = 0
    bars = "/s" in text or "s/it" in text
    while True:
        if found := _PROCESS.match(text, at):
            name = f"{found[1]} {found[2]}"
            if process and process != name and not (bar or level):
                owed = process
            process = name
        elif found := _TORCHRUN.match(text, at):
            process = f"rank{found[1]}"
        elif not level and (found := _LEVEL.match(text, at) or _STANDARD.match(text, at)):
            level, stamp = found[1], found[0]
        elif bars and (found := _BAR.match(text, at)):
            bar = True
        else:
            return Line(process, level, text[at:], stamp, bar, owed)
        at = found.end()


def rank_of(process: str) -> int | None:
    """``Worker_TP3 pid=99`` -> 3; None where the name carries no rank."""
    found = _RANK.search(process)
    return int(found[1]) if found else None
