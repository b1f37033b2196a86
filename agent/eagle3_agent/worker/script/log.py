"""Progress bars of the script, read off the run's log as it grows.

A bar rewrites its line with a carriage return, several processes write into one log, and a line
can be megabytes long: what is held is bounded, and so is the time for a piece.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

#: Bytes looked at in one go.
_PIECE = 1 << 20

#: A log that is further ahead than this runs away: its newest piece is what counts.
_BEHIND = 16 << 20

#: Bytes of an unfinished line that are kept; a bar is as wide as a terminal.
_KEPT = 1024

# Generating hidden states:  50%|#####     | 4/8 [00:01<00:01,  2.13it/s]
_BAR = re.compile(rb"\d{1,3}%\|[^|\r\n]{0,400}\|\s{0,20}(\d{1,12})/(\d{1,12}) \[")

#: Bars of the load, which have events of their own.
_LOADING = re.compile(r"shards|safetensors|profiling|capturing", re.IGNORECASE)


@dataclass(frozen=True)
class Bar:
    """One state of a bar."""

    name: str
    done: int
    total: int


class LogFollower:
    """Bars from ``offset`` on, and the last line that says something."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path, self._offset = path, offset
        self._rest = b""
        self._told = 0  # where in the rest the last bar ended
        self.last_line = ""
        """Of what was read so far; cut."""

    def read(self) -> list[Bar]:
        """Bars that are new since the last call, at most the bars of one piece; never raises."""
        try:
            with self._path.open("rb") as file:
                behind = file.seek(0, os.SEEK_END) - self._offset
                if behind > _BEHIND:
                    self._offset += behind - _PIECE
                    self._rest, self._told = b"", 0
                file.seek(self._offset)
                data = file.read(_PIECE)
        except OSError:
            return []
        self._offset += len(data)
        return self.feed(data)

    def catch_up(self) -> None:
        """Read to the end, for its last line."""
        while True:
            before = self._offset
            self.read()
            if self._offset == before:
                return

    def feed(self, data: bytes) -> list[Bar]:
        data = self._rest + data
        matches = list(_BAR.finditer(data, self._told))
        self._remember(data)
        start = max(data.rfind(b"\n"), data.rfind(b"\r"), len(data) - _KEPT - 1) + 1
        told = matches[-1].end() if matches else self._told
        self._rest, self._told = data[start:], max(0, told - start)
        return [_bar(data, match) for match in matches]

    def _remember(self, data: bytes) -> None:
        for line in reversed(re.split(rb"[\r\n]+", data[-16 * _KEPT :])):
            text = line[:_KEPT].decode("utf-8", errors="replace").strip()
            text = "".join(c if c.isprintable() else " " for c in text)
            if text.strip():
                self.last_line = text.strip()[:300]
                return


def _bar(data: bytes, match: re.Match[bytes]) -> Bar:
    before = data[max(0, match.start() - 200) : match.start()]
    name = re.split(rb"[\r\n]", before)[-1].decode("utf-8", errors="replace").strip()
    return Bar(name.removesuffix(":").strip(), int(match[1]), int(match[2]))


class Pace:
    """Seconds left by the bar that moves, where files do not tell."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._first = (0.0, 0)

    def see(self, bar: Bar, now: float) -> None:
        if bar.total <= 0 or bar.done > bar.total or _LOADING.search(bar.name):
            return
        last = self._bar
        if last is None or (bar.name, bar.total) != (last.name, last.total) or bar.done < last.done:
            self._first = (now, bar.done)
        self._bar = bar

    def eta(self, now: float) -> float | None:
        """None until the bar has moved, and once it has ended."""
        if self._bar is None or self._bar.done >= self._bar.total:
            return None
        since, first = self._first
        moved = self._bar.done - first
        return (self._bar.total - self._bar.done) * (now - since) / moved if moved else None
