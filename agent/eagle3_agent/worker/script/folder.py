"""The output folder while the script writes into it, and what is made of its files.

Looked at now and then, at a cost that stays a small share of the time however many files there
are; each file is examined once, by a few threads, and again when it has changed and keeps still.
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

#: Looks for files that keep still, once the script has ended.
_ROUNDS = 5

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
    entry: Entry | None = None
    reason: str = ""


_NEVER = Stamp(-1, 0, 0)


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
        self._at_work: dict[str, Future[Entry]] = {}
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
        found = []
        for _ in range(_ROUNDS):
            self._scan(changes=True)
            wait(self._at_work.values())
            found += self._collect()
            if all(known.entry or known.reason for known in self._known.values()):
                break
        return found

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
        """``changes``: look again at files that were found right, too.  Raises OSError."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            names = []  # a script may begin by making its folder anew
        for name in names:
            known = self._known.get(name)
            if known is None:
                self._meet(name)
            elif name not in self._at_work and (known.entry is None or changes):
                self._visit(name, known)
        for name in self._known.keys() - self._at_work - set(names):
            del self._known[name]

    def _meet(self, name: str) -> None:
        """A new name: examined at once, since what is saved under this run comes whole."""
        match = self._name.fullmatch(name)
        if match is None or name in self._ignored:
            return
        known = _Known(int(match[1]), _NEVER)
        self._visit(name, known)
        if known.stamp != _NEVER:
            self._examine(name, known)

    def _visit(self, name: str, known: _Known) -> None:
        try:
            stamp = Stamp.of(self.path / name)
        except OSError:
            return  # gone meanwhile
        except Unfit as why:
            self._known[name] = _Known(known.index, _NEVER, reason=str(why))
            return
        if known.stamp != stamp:
            # still for one look, then it is examined
            known.stamp, known.entry, known.reason = stamp, None, ""
            self._known[name] = known
        elif known.entry is None and not known.reason:
            self._examine(name, known)

    def _examine(self, name: str, known: _Known) -> None:
        self._at_work[name] = self._pool.submit(
            samples.examine,
            self.path / name,
            known.index,
            self._rows.get(known.index),
            self._wanted,
        )

    def _collect(self) -> list[Found]:
        done = [name for name, work in self._at_work.items() if work.done()]
        found = (self._judge(name, self._known[name], self._at_work.pop(name)) for name in done)
        return [one for one in found if one is not None]

    def _judge(self, name: str, known: _Known, work: Future[Entry]) -> Found | None:
        """What was found out, unless the file has changed meanwhile."""
        error = work.exception()
        if error is not None and not isinstance(error, Unfit):
            raise error
        try:
            if Stamp.of(self.path / name) != known.stamp:
                return None
        except (OSError, Unfit):
            return None  # the next look will see what is there instead
        if error is None:
            known.entry = work.result()
        else:
            known.reason = str(error)
            if error.torn:
                return None  # perhaps on its way still
        return Found(known.index, name, known.entry, known.reason)
