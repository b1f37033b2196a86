"""The history: each run's folder folded into one line, read no further than what is new.

An ``Index`` is a cache.  Everything in it can be read again from the folders,
and is, when the agent starts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from . import causes, paths, processes, runs
from .protocol import ProtocolError
from .protocol.fold import Standing
from .protocol.values import Cause, ErrorInfo, RunDetail, RunState, RunSummary, Samples
from .runs import Exit, Guardian, RunFolder, RunRecord

#: A run of another host that shares this home counts as living while its telemetry grows (seconds).
_REMOTE_SILENCE = 120.0

#: States that no event changes any more.
ENDED: frozenset[RunState] = frozenset({"completed", "incomplete", "failed", "aborted", "lost"})

#: Kept beside an ended run, so that its events need not be folded again.
_CACHE = "summary.json"


@dataclass(frozen=True)
class _Cached:
    """``summary.json``: good as long as ``events.jsonl`` still has ``offset`` bytes."""

    offset: int
    claims: tuple[str, ...]
    host: str
    summary: RunSummary


@dataclass
class Entry:
    """What is known of one run."""

    folder: RunFolder
    summary: RunSummary
    claims: tuple[str, ...] = ()
    host: str = ""
    record: RunRecord | None = None
    standing: Standing = field(default_factory=Standing)
    offset: int = 0

    @property
    def ended(self) -> bool:
        return self.summary.state in ENDED


class Index:
    """All runs of this home by id."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._open: dict[str, Entry] = {}
        self._seen: tuple[float, int] = (0.0, 0)

    def refresh(self) -> list[RunSummary]:
        """Read what is new everywhere; the summaries that changed, oldest run first."""
        return [summary for summary in self.refreshing() if summary is not None]

    def refreshing(self) -> Iterator[RunSummary | None]:
        """``refresh`` in steps, one folder each, so that a caller can do other things between."""
        for folder in self._new_folders():
            yield self._add(folder).summary
        for entry in list(self._open.values()):
            yield self._update(entry)

    def update(self, run: str) -> RunSummary | None:
        """Read one run again now; None when nothing changed."""
        entry = self.entries.get(run)
        if entry is None:
            folder = RunFolder(paths.runs_dir() / run)
            if not folder.path.is_dir():
                return None
            return self._add(folder).summary
        return None if entry.ended else self._update(entry)

    def _add(self, folder: RunFolder) -> Entry:
        entry = self.entries[folder.run] = _open(folder)
        if not entry.ended:
            self._open[folder.run] = entry
        return entry

    def _update(self, entry: Entry) -> RunSummary | None:
        before = entry.summary
        _read_new(entry)
        if entry.ended:
            self._open.pop(entry.folder.run, None)
        return entry.summary if entry.summary != before else None

    def _new_folders(self) -> list[RunFolder]:
        try:
            changed = os.stat(paths.runs_dir()).st_mtime
        except OSError:
            return []
        # a folder made within the clock's grain of the last look does not move the time: look
        # again for two seconds after a change
        if self._seen[0] == changed and time.time() - changed > 2.0:
            return []
        self._seen = (changed, len(self.entries))
        found = runs.list_folders()
        # who removes a folder by hand removes the run; its number may then be given again
        for gone in self.entries.keys() - {f.run for f in found}:
            del self.entries[gone]
            self._open.pop(gone, None)
        return [f for f in found if f.run not in self.entries]

    def summaries(self) -> list[RunSummary]:
        """Oldest first."""
        return sorted((e.summary for e in self.entries.values()), key=lambda s: s.number)

    def find(self, name: str) -> Entry | None:
        """By id, number or ``last``."""
        if name in self.entries:
            return self.entries[name]
        if name == "last":
            return max(self.entries.values(), key=lambda e: e.summary.number, default=None)
        if not (name.isascii() and name.isdecimal() and len(name) < 18):
            return None
        return self.entries.get(f"{int(name):04d}")

    def in_state(self, *states: Literal["running", "queued"]) -> list[Entry]:
        """By number."""
        found = [e for e in self._open.values() if e.summary.state in states]
        return sorted(found, key=lambda e: e.summary.number)


def _open(folder: RunFolder) -> Entry:
    cached = runs.read_optional(folder.path / _CACHE, _Cached)
    if cached is not None and cached.offset == _size(folder):
        return Entry(folder, cached.summary, cached.claims, cached.host, offset=cached.offset)
    try:
        record = folder.record()
    except (OSError, ProtocolError) as error:
        return Entry(folder, _broken(folder, error))
    entry = Entry(folder, _summary(record, Standing(), "queued", None), record.claims, record.host)
    entry.record = record
    _read_new(entry)
    return entry


def _read_new(entry: Entry) -> None:
    if entry.record is None:
        return
    # the state first: what is written before a run's end is then surely read below
    state, end = read_state(entry.folder, entry.record)
    entry.standing, entry.offset = entry.folder.fold_on(entry.standing, entry.offset)
    entry.summary = _summary(entry.record, entry.standing, state, end)
    if entry.ended:
        entry.record, entry.standing = None, Standing()
        cached = _Cached(entry.offset, entry.claims, entry.host, entry.summary)
        if entry.offset == _size(entry.folder):
            with contextlib.suppress(OSError):  # a full disk: the cache can be made another time
                runs.write_value(entry.folder.path / _CACHE, cached, durable=False)


def _size(folder: RunFolder) -> int:
    try:
        return folder.events.stat().st_size
    except OSError:
        return 0


def read_state(folder: RunFolder, record: RunRecord) -> tuple[RunState, Exit | None]:
    """Where a run stands, from its files and the process table."""
    end = folder.exit()
    if end is not None:
        return end.state, end
    guardian = folder.guardian()
    if guardian is None:
        return "queued", None
    if _guarded(folder, guardian):
        return "running", None
    end = folder.exit()  # written between the two looks
    return (end.state, end) if end is not None else ("lost", None)


def _guarded(folder: RunFolder, guardian: Guardian) -> bool:
    if guardian.host == os.uname().nodename:
        who = processes.Identity(guardian.pid, guardian.start_time)
        return guardian.boot_id == processes.boot_id() and processes.alive(who)
    try:
        return time.time() - folder.gpu.stat().st_mtime < _REMOTE_SILENCE
    except OSError:
        return False


def _summary(
    record: RunRecord, standing: Standing, state: RunState, end: Exit | None
) -> RunSummary:
    ended = end.ended if end else (standing.last if state == "lost" else None)
    stage = standing.stage.name if standing.stage else ""
    return RunSummary(
        run=record.run,
        number=record.number,
        state=state,
        attempt=record.attempt,
        profile=record.profile.name,
        engine=record.engine,
        started=standing.spawned.t if standing.spawned else None,
        ended=ended,
        samples=standing.samples,
        tokens=standing.tokens,
        tokens_per_second=standing.mean_rate(),
        bytes=standing.bytes,
        output_dir=record.profile.output.dir,
        model=record.profile.model.path,
        created=record.created,
        stage=standing.failed_stage or stage,
        error=standing.error,
        cause=standing.cause.sentence if standing.cause else "",
    )


def _broken(folder: RunFolder, error: Exception) -> RunSummary:
    """A folder whose ``run.json`` cannot be read still has a line, which says so."""
    what = ErrorInfo(type(error).__name__, f"{folder.path / 'run.json'}: {error}"[:500])
    return RunSummary(
        run=folder.run,
        number=int(folder.run),
        state="lost",
        attempt=0,
        profile="",
        engine="",
        started=None,
        ended=None,
        samples=Samples(),
        tokens=0,
        tokens_per_second=None,
        bytes=0,
        output_dir="",
        error=what,
    )


def detail(entry: Entry) -> RunDetail:
    """Everything about a run; raises OSError or ProtocolError when ``run.json`` cannot be read."""
    record = entry.folder.record()
    standing = entry.folder.standing()
    summary = entry.summary
    if summary.error is not None:  # a wire line has a limit, and events.jsonl has it all
        summary = replace(summary, error=_cut(summary.error, 100_000, 500_000))
    return RunDetail(
        summary=summary,
        resolved=record.profile,
        preflight=entry.folder.preflight() or record.preflight,
        forced=record.forced,
        patches=standing.patches,
        environment=record.environment,
        folder=str(entry.folder.path),
        stages=standing.stages,
        throughput=standing.throughput,
        cause=_cause(entry.folder, summary, standing),
    )


def _cause(folder: RunFolder, summary: RunSummary, standing: Standing) -> Cause | None:
    """As the supervisor told it; of a run that had none to its end, the log is read now."""
    if summary.state not in ("failed", "lost"):
        return None
    return standing.cause or causes.of_log(folder.output, standing.error)


def short(summary: RunSummary) -> RunSummary:
    """The summary as a list carries it: the error's first words, the rest is in the detail."""
    if summary.error is None:
        return summary
    return replace(summary, error=_cut(summary.error, message=500, traceback=0))


def _cut(error: ErrorInfo, message: int, traceback: int) -> ErrorInfo:
    """The error with at most so many characters; of a traceback, the end is what matters."""
    tail = error.traceback[-traceback:] if traceback else ""
    return replace(error, message=error.message[:message], traceback=tail)
