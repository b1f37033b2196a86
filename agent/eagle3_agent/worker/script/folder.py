"""The output folder while the script writes into it, and what is made of its files.

Looked at now and then, at a cost that stays a small share of the time however many files there
are; each new file is examined once, by a few threads, as soon as it keeps still.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.worker import manifest
from eagle3_agent.worker.manifest import Entry

from . import samples
from .samples import Row, Stamp, Unfit, Wanted

#: Seconds between two looks, at least; and a look takes this share of the time, at most.
_EVERY = 0.5
_SHARE = 0.05

#: Each holds two copies of one file in memory.
_THREADS = 2


@dataclass(frozen=True)
class Found:
    """What became of one file: a sample, or the reason why it is none."""

    index: int
    name: str
    entry: Entry | None
    reason: str = ""


@dataclass
class _Known:
    index: int
    stamp: Stamp
    work: Future[Entry] | None = None
    entry: Entry | None = None
    reason: str = ""
    torn: bool = False


class Folder:
    """Not thread-safe: one thread calls it."""

    def __init__(
        self,
        path: Path,
        rows: Mapping[int, Row],
        wanted: Wanted,
        *,
        kept: Mapping[int, Entry],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """``kept`` are samples that were checked already, ``ignored`` names of other runs'."""
        self.path = path
        self._rows, self._wanted, self._ignored = rows, wanted, ignored
        head, tail = manifest.file_name(0, wanted.kind).split("0")
        # no leading zeros: data_007.pt is not the file of row 7
        self._name = re.compile(re.escape(head) + r"(0|[1-9]\d{0,17})" + re.escape(tail))
        self._known: dict[str, _Known] = {}
        for entry in kept.values():
            self._known[entry.file] = _Known(entry.index, Stamp.of(path / entry.file), entry=entry)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="samples")
        self._due = 0.0

    def look(self) -> list[Found]:
        """What has been found out since the last call; scans the folder when it is time."""
        if time.monotonic() >= self._due:
            began = time.monotonic()
            self._scan(changes=False)
            took = time.monotonic() - began
            self._due = time.monotonic() + max(_EVERY, took / _SHARE)
        return self._collect()

    def settle(self) -> list[Found]:
        """Once nothing is written any more: every file that is new or changed, examined."""
        found = self._collect()
        self._scan(changes=True)
        self._scan(changes=True)  # a file is examined when two looks saw the same
        wait([known.work for known in self._known.values() if known.work is not None])
        return found + self._collect()

    def samples(self) -> dict[int, Entry]:
        return {k.index: k.entry for k in self._known.values() if k.entry is not None}

    def unfit(self) -> dict[int, Found]:
        return {
            k.index: Found(k.index, name, None, k.reason)
            for name, k in self._known.items()
            if k.entry is None and k.reason
        }

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ scanning

    def _scan(self, *, changes: bool) -> None:
        """``changes``: look again at files that were found right, too."""
        here = set()
        for name, index in self._names():
            known = self._known.get(name)
            here.add(name)
            if known is None or known.entry is None or changes:
                self._visit(name, index, known)
        for name in [n for n, k in self._known.items() if n not in here and k.work is None]:
            del self._known[name]

    def _names(self) -> list[tuple[str, int]]:
        """Names of samples, with their numbers; raises OSError."""
        with os.scandir(self.path) as listing:
            matches = (self._name.fullmatch(item.name) for item in listing)
            return [(m[0], int(m[1])) for m in matches if m and m[0] not in self._ignored]

    def _visit(self, name: str, index: int, known: _Known | None) -> None:
        if known is not None and known.work is not None:
            return
        try:
            stamp = Stamp.of(self.path / name)
        except OSError:
            return  # gone meanwhile
        except Unfit as why:
            self._known[name] = _Known(index, Stamp(0, 0, 0), reason=str(why))
            return
        if known is None or known.stamp != stamp:
            self._known[name] = _Known(index, stamp)  # still for one look, then it is examined
        elif known.entry is None and not known.reason:
            known.work = self._pool.submit(
                samples.examine, self.path / name, index, self._rows.get(index), self._wanted
            )

    def _collect(self) -> list[Found]:
        found = []
        for name, known in self._known.items():
            if known.work is None or not known.work.done():
                continue
            work, known.work = known.work, None
            try:
                entry = work.result()
                if Stamp.of(self.path / name) == known.stamp:
                    known.entry = entry
                    found.append(Found(known.index, name, entry))
            except Unfit as why:
                known.reason, known.torn = str(why), why.torn
                if not why.torn:
                    found.append(Found(known.index, name, None, known.reason))
            except OSError:
                pass  # gone meanwhile; the next look will not see it
        return found
