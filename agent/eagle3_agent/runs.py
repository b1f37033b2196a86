"""A run's folder: made, read and listed.  Nothing about a run is known from elsewhere.

    run.json         what was asked: written once, before anything starts
    events.jsonl     what happened, appended by agent, supervisor and worker
    output.log       the worker's stdout and stderr, raw
    samples.jsonl    what became of each sample, from the process that writes them to the worker
    script.jsonl     what a user's script has said of itself, from its process to the worker
    gpu.jsonl        HostSample lines while the run went on
    supervisor.json  who guards it: pid, start time, boot id, host
    preflight.json   the check of a queued run, when its turn came
    exit.json        how it ended: written once, by whoever saw the end

Written files are replaced whole (temporary name, fsync, rename), so a reader
sees the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from . import journal, paths
from .protocol import ProtocolError, decode_event, dumps, from_json
from .protocol.events import Event
from .protocol.fold import Standing, fold
from .protocol.values import Profile, Report, RunState

T = TypeVar("T")

#: Format of the folder; a reader accepts this and everything older.
FORMAT = 1


@dataclass(frozen=True)
class RunRecord:
    """``run.json``."""

    format: int
    run: str
    number: int
    attempt: int
    created: float
    host: str
    profile: Profile
    engine: str
    """What ``auto`` became."""
    preflight: Report | None = None
    forced: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    """What no other running run may claim: ``gpu:UUID``, ``cpu``, ``output:FOLDER``."""
    environment: dict[str, Any] = field(default_factory=dict)
    resumes: str = ""
    """The run whose samples this attempt keeps; empty for a fresh one."""


@dataclass(frozen=True)
class Guardian:
    """``supervisor.json``: a pid means something only together with its start time and boot."""

    pid: int
    start_time: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""
    boot_id: str
    host: str


@dataclass(frozen=True)
class Exit:
    """``exit.json``."""

    state: RunState
    ended: float
    code: int | None = None
    signal: int | None = None
    survivors: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class RunFolder:
    """A path with the names inside it; holds no state."""

    path: Path

    @property
    def run(self) -> str:
        return self.path.name

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def gpu(self) -> Path:
        return self.path / "gpu.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "samples.jsonl"

    def stream(self, name: str) -> Path:
        """The file of a ``StreamName``."""
        return {"events": self.events, "output": self.output, "gpu": self.gpu}[name]

    def append(self, event: Event) -> None:
        journal.append(self.events, event)

    def record(self) -> RunRecord:
        """Raises OSError or ProtocolError when ``run.json`` is missing or broken."""
        return read_value(self.path / "run.json", RunRecord)

    def guardian(self) -> Guardian | None:
        return read_optional(self.path / "supervisor.json", Guardian)

    def write_guardian(self, guardian: Guardian) -> None:
        """Raises FileExistsError when somebody guards, or guarded, this run already."""
        self._write_once("supervisor.json", guardian)

    def preflight(self) -> Report | None:
        """The check that ran when a queued run's turn came; None without such."""
        return read_optional(self.path / "preflight.json", Report)

    def write_preflight(self, report: Report) -> None:
        write_value(self.path / "preflight.json", report)

    def exit(self) -> Exit | None:
        return read_optional(self.path / "exit.json", Exit)

    def write_exit(self, end: Exit) -> None:
        """Raises FileExistsError when the run's end was already written."""
        self._write_once("exit.json", end)

    def _write_once(self, name: str, value: Any) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        _write(temporary, dumps(value).encode("ascii") + b"\n")
        try:
            os.link(temporary, self.path / name)  # link never replaces
        finally:
            temporary.unlink()
        sync_folder(self.path)

    def read_events(self, offset: int = 0) -> Iterator[tuple[int, Event]]:
        """Events this version understands, each with the offset after it."""
        for after, line in journal.lines(self.events, offset):
            event = decode_event(line)
            if event is not None:
                yield after, event

    def standing(self) -> Standing:
        return self.fold_on(Standing(), 0)[0]

    def fold_on(self, standing: Standing, offset: int) -> tuple[Standing, int]:
        """``standing`` after the events from ``offset``, and the offset after them.

        The same as folding ``read_events``, for far less: of sums that replace each other, only
        the last before another event is decoded.
        """
        waiting: dict[bytes, bytes] = {}
        for after, line in journal.lines(self.events, offset):
            offset = after
            kind = line[len(_TAG) : line.find(b'"', len(_TAG))] if line.startswith(_TAG) else b""
            if kind in _REPLACED and line.endswith(b"}"):  # whole, not torn by a full disk
                waiting.pop(kind, None)
                waiting[kind] = line
                continue
            standing = _fold_lines(standing, [*waiting.values(), line])
            waiting.clear()
        return _fold_lines(standing, waiting.values()), offset


#: How ``encode`` begins a line, and the events that say nothing the next of their kind does not.
_TAG = b'{"type":"'
_REPLACED = frozenset({b"Progress", b"Throughput", b"Wrote"})


def _fold_lines(standing: Standing, lines: Iterable[bytes]) -> Standing:
    for line in lines:
        event = decode_event(line)
        if event is not None:
            standing = fold(standing, event)
    return standing


def create(
    profile: Profile,
    engine: str,
    *,
    attempt: int,
    preflight: Report | None = None,
    forced: tuple[str, ...] = (),
    claims: tuple[str, ...] = (),
    environment: dict[str, Any] | None = None,
    resumes: str = "",
) -> RunFolder:
    """Claim the next number by making its folder, and write ``run.json``.

    The folder is complete or absent: it is made under a temporary name and renamed.
    Raises OSError when the state folder cannot be written.
    """
    root = paths.private_dir(paths.runs_dir())
    number = max((f.number for f in _numbered(root)), default=0)
    while True:
        number += 1
        final = root / f"{number:04d}"
        staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=root))  # 0700
        record = RunRecord(
            format=FORMAT,
            run=final.name,
            number=number,
            attempt=attempt,
            created=time.time(),
            host=os.uname().nodename,
            profile=profile,
            engine=engine,
            preflight=preflight,
            forced=forced,
            claims=claims,
            environment=environment or {},
            resumes=resumes,
        )
        try:
            write_value(staging / "run.json", record)
            (staging / "events.jsonl").touch(mode=0o600)
            os.rename(staging, final)  # fails on a folder that is not empty: the claim
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            if final.exists():
                continue
            raise
        sync_folder(root)
        return RunFolder(final)


@dataclass(frozen=True)
class _Numbered:
    number: int
    path: Path


def _numbered(root: Path) -> list[_Numbered]:
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    return [_Numbered(int(n), root / n) for n in names if n.isdecimal() and n.isascii()]


def list_folders() -> list[RunFolder]:
    """Every run of this home, oldest first."""
    found = sorted(_numbered(paths.runs_dir()), key=lambda f: f.number)
    return [RunFolder(f.path) for f in found]


def find(name: str) -> RunFolder | None:
    """A run by id, number or ``last``; None when there is none."""
    folders = list_folders()
    if name == "last":
        return folders[-1] if folders else None
    if not (name.isascii() and name.isdecimal()):
        return None
    wanted = int(name)
    return next((f for f in folders if int(f.run) == wanted), None)


def read_value(path: Path, cls: type[T]) -> T:
    """Read a whole-file JSON value; raises OSError or ProtocolError."""
    try:
        body = json.loads(path.read_bytes())
    except ValueError as error:
        raise ProtocolError(f"{path.name} is not JSON: {error}") from None
    return from_json(cls, body)


def read_optional(path: Path, cls: type[T]) -> T | None:
    """The same; None for a file that is not there or cannot be read."""
    try:
        return read_value(path, cls)
    except (OSError, ProtocolError):
        return None


def write_value(path: Path, value: Any, durable: bool = True) -> None:
    """Replace ``path`` whole: temporary name, fsync, rename, fsync of the folder.

    Without ``durable`` a power cut may leave an empty file: for what can be made again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(temporary, dumps(value).encode("ascii") + b"\n", durable)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def _write(path: Path, data: bytes, durable: bool = True) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(fd)


def sync_folder(path: Path) -> None:
    """Make renames in ``path`` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
