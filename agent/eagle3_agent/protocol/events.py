"""The lines of a run's ``events.jsonl``, oldest first; pure.

Every event carries ``t``, epoch seconds by the host's clock.  The worker
writes what it does, the supervisor what became of it, the agent what came
before.  A reader that meets an unknown event skips it (``decode_event``
returns None): a run folder outlives the version that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Union, cast

from .codec import ProtocolError, decode
from .values import Cause, ErrorInfo, PatchFinding, RunState, StageName
from .values import Throughput as Throughput


@dataclass(frozen=True)
class Stage:
    """A stage begins, ends well, or ends badly.  Stages do not nest."""

    t: float
    name: StageName
    status: Literal["start", "done", "failed"]
    detail: str = ""


@dataclass(frozen=True)
class Load:
    """Checkpoint shards read so far."""

    t: float
    done: int
    total: int


@dataclass(frozen=True)
class Plan:
    """What the run will do, known once the data is read: the denominators."""

    t: float
    total: int
    """Samples, those that will be skipped included."""
    tokens: int | None = None
    """Tokens after truncation."""
    bytes: int | None = None
    """Predicted output: tokens x layers x hidden x bytes of the dtype."""
    reused: int = 0
    """Samples already valid in the output folder, counted as done."""


@dataclass(frozen=True)
class Progress:
    """Sums since the run began, at most four a second."""

    t: float
    done: int
    total: int
    skipped: int
    tokens: int
    bytes: int
    """Bytes of finished sample files."""
    tokens_per_second: float | None = None
    """Over the last ``window`` seconds."""
    window: float | None = None
    eta: float | None = None
    """Seconds left, from the mean of this run's extract stage."""


@dataclass(frozen=True)
class Wrote:
    """A sample file that is complete and in place (the newest of a batch; not every one)."""

    t: float
    index: int
    file: str
    tokens: int
    bytes: int
    shape: tuple[int, ...] = ()
    """[tokens, hidden] of one layer."""
    layers: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Skipped:
    """A sample that was not written; ``index`` is its place in the data."""

    t: float
    index: int
    reason: str


@dataclass(frozen=True)
class Patched:
    """What became of one named patch in this run's worker."""

    t: float
    finding: PatchFinding
    applied: bool


@dataclass(frozen=True)
class Note:
    t: float
    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True)
class Failure:
    """The exception that ended the worker."""

    t: float
    error: ErrorInfo


@dataclass(frozen=True)
class Diagnosed:
    """The supervisor has read the log of a run that failed, and says what happened first."""

    t: float
    cause: Cause


@dataclass(frozen=True)
class Spawned:
    """The supervisor started the worker."""

    t: float
    supervisor: int
    worker: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Aborting:
    """One step of an abort: which signal went to which pids (first 64 of them)."""

    t: float
    signal: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    """The last line: the worker and all its descendants are gone."""

    t: float
    state: RunState
    code: int | None = None
    """Exit status; None when a signal ended it."""
    signal: int | None = None
    survivors: tuple[int, ...] = ()
    """Descendants that even KILL did not end (D state); empty is the proof."""
    text: str = ""


Event = Union[
    Stage,
    Load,
    Plan,
    Progress,
    Throughput,
    Wrote,
    Skipped,
    Patched,
    Note,
    Failure,
    Diagnosed,
    Spawned,
    Aborting,
    Ended,
]

EVENT_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Stage,
        Load,
        Plan,
        Progress,
        Throughput,
        Wrote,
        Skipped,
        Patched,
        Note,
        Failure,
        Diagnosed,
        Spawned,
        Aborting,
        Ended,
    )
}


def decode_event(line: bytes) -> Event | None:
    """One line of ``events.jsonl``; None for a line this version cannot read."""
    try:
        return cast(Event, decode(line, EVENT_TYPES))
    except ProtocolError:
        return None
