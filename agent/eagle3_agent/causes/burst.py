"""The errors of a log that are kept, and which of them the run lived through; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .consequences import follows, kind
from .found import Found
from .loglines import Line

#: Errors kept, and how many of them stay when there are more: one that repeats is kept once.
_MOST = 300
_STAY = 200

#: Lines without an exception after which what came before was survived.
SURVIVED = 400
#: Ordinary lines of the same process after which its error was survived.
_WORK = 25
#: Lines after an error in which ordinary ones are counted.
_WATCHED = 4000

#: A process that says this after an error has lived through it.
_MILESTONE = re.compile(
    r"Starting to load model|Loading safetensors checkpoint shards|Loading weights took"
    r"|Model loading took|Resolved architecture|Using max model len|Initializing a V\d LLM engine"
    r"|KV cache size:|init engine \(|Available KV cache memory|Graph capturing finished"
)
#: Ordinary words of processes that end because of an error.
_ENDING = re.compile(
    r"[Ss]hut(?:ting)? ?down|[Tt]erminat|exited|[Dd]estroy|[Cc]los(?:ed|ing)|[Dd]rain|[Aa]bort"
    r"|[Ww]aiting for|[Dd]ump"
)


@dataclass
class _Kept:
    found: Found
    survived: bool = False
    work: int = 0


class Errors:
    """Those worth keeping, in the order in which they were complete."""

    def __init__(self) -> None:
        self.end = 0
        """Number of the line behind the last error."""
        self._kept: list[_Kept] = []
        self._same: dict[tuple[str, tuple[str, str]], _Kept] = {}
        self._open: dict[str, list[_Kept]] = {}
        """By process, those that nothing says to be survived."""

    def watching(self, number: int) -> bool:
        """Whether the lines at ``number`` can still tell that an error was survived."""
        return bool(self._open) and number - self.end < _WATCHED

    def add(self, found: Iterable[Found]) -> None:
        for one in found:
            if not one.ignored:
                self._add(one)

    def _add(self, found: Found) -> None:
        if self._kept and found.line - self.end > SURVIVED:
            for kept in self._kept:
                kept.survived = True
            self._open.clear()
        self.end = max(self.end, found.end)
        key = (found.process, kind(found.first))
        same = self._same.get(key)
        if same is not None and not same.survived:
            return
        kept = _Kept(found)
        if same is not None:
            self._kept.remove(same)
        self._kept.append(kept)
        self._same[key] = kept
        self._open.setdefault(found.process, []).append(kept)
        if len(self._kept) > _MOST:
            self._thin()

    def _thin(self) -> None:
        """Leave out what is survived, then what follows from others, then the latest."""
        ranked = sorted(self._kept, key=lambda k: (k.survived, follows(k.found.first)))
        stay = {id(kept) for kept in ranked[:_STAY]}
        self._kept = [kept for kept in self._kept if id(kept) in stay]
        self._same = {k: kept for k, kept in self._same.items() if id(kept) in stay}
        self._open = {
            process: left
            for process, some in self._open.items()
            if (left := [kept for kept in some if id(kept) in stay])
        }

    def saw(self, line: Line) -> None:
        """A line that is no error: work that goes on, by the process that writes it."""
        some = self._open.get(line.process)
        if not some:
            return
        milestone = _MILESTONE.search(line.text) is not None
        if milestone or (
            (line.bar or line.level in ("INFO", "DEBUG")) and not _ENDING.search(line.text)
        ):
            for kept in some:
                kept.work += _WORK if milestone else 1
                kept.survived = kept.work >= _WORK
            left = [kept for kept in some if not kept.survived]
            if left:
                self._open[line.process] = left
            else:
                del self._open[line.process]

    def copy(self) -> Errors:
        """The same state, to be read on by itself."""
        same = Errors()
        same.end = self.end
        twins = {id(k): _Kept(k.found, k.survived, k.work) for k in self._kept}
        same._kept = list(twins.values())
        same._same = {key: twins[id(kept)] for key, kept in self._same.items()}
        same._open = {p: [twins[id(kept)] for kept in some] for p, some in self._open.items()}
        return same

    def burst(self) -> list[Found]:
        """The errors of the run's end, in the order of the log."""
        return _in_order(kept.found for kept in self._kept if not kept.survived)

    def survived(self) -> list[Found]:
        """The others."""
        return _in_order(kept.found for kept in self._kept if kept.survived)


def _in_order(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda one: one.line)
