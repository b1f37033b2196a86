"""What client and agent say to each other; pure.

A client's message carries ``id``; exactly one reply carries the same number
as ``re``: the type named in the message's docstring, or ``Refused``.
``Chunk``, ``Telemetry`` and ``RunChanged`` come unasked once subscribed;
``Probing`` comes before its reply, with the same ``re``.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal, Union, cast, get_args

from .codec import decode
from .values import (
    Action,
    HostSample,
    PatchFinding,
    Problem,
    Profile,
    ReferenceDtype,
    Report,
    RunDetail,
    RunSummary,
    Verdict,
    VerifyReport,
)

StreamName = Literal["events", "output", "gpu"]
"""A run's append-only files: ``events.jsonl``, ``output.log``, ``gpu.jsonl``."""

# ------------------------------------------------------------------ client -> agent


@dataclass(frozen=True)
class Hello:
    """First line of a client.  -> Welcome"""

    id: int
    version: int
    client: str = ""
    read_only: bool = False
    """Refuse everything that changes the host, whatever this client sends later."""


@dataclass(frozen=True)
class ListRuns:
    """-> Runs; ``watch`` also sends RunChanged whenever a summary changes."""

    id: int
    watch: bool = False
    before: int | None = None
    """Only runs with a lower number: the next page after ``Runs.older``."""


@dataclass(frozen=True)
class GetRun:
    """-> Detail"""

    id: int
    run: str


@dataclass(frozen=True)
class RunPreflight:
    """-> Checked; with ``deep``, Probing meanwhile, as probes answer."""

    id: int
    profile: Profile
    deep: bool = False
    """Take minutes: compute on each GPU, move data between them, write gigabytes."""


@dataclass(frozen=True)
class Act:
    """Take one action that a preflight of this profile offered.  -> Acted

    The check is made again first, and the action is taken only if it is offered again with the
    same targets: what is done never comes from the client.
    """

    id: int
    profile: Profile
    check: str
    action: Action


@dataclass(frozen=True)
class Start:
    """Preflight, then a run.  -> Started, or Refused(code ``blocked``, with the report)."""

    id: int
    profile: Profile
    force: tuple[str, ...] = ()
    """Ids of blocking checks to start over; each must be blocking or it is ignored."""
    queue: bool = False
    """Wait for the GPUs instead of being refused when another run holds them."""


@dataclass(frozen=True)
class Resume:
    """A new attempt of an ended run with the same profile: valid samples are kept.  -> Started"""

    id: int
    run: str
    force: tuple[str, ...] = ()
    queue: bool = False


@dataclass(frozen=True)
class Abort:
    """End a run's worker and every descendant, or take it out of the queue.  -> Done"""

    id: int
    run: str


@dataclass(frozen=True)
class Clear:
    """Remove the sample files that a run wrote.  Without ``confirm``: say what would go.

    -> Cleared
    """

    id: int
    run: str
    confirm: bool = False


@dataclass(frozen=True)
class Subscribe:
    """Stream a run's file from a byte offset.  -> Done, then Chunk with ``sub`` = this id."""

    id: int
    run: str
    stream: StreamName
    offset: int = 0


@dataclass(frozen=True)
class Unsubscribe:
    """-> Done"""

    id: int
    sub: int


@dataclass(frozen=True)
class WatchHost:
    """-> Done, then Telemetry about every ``interval`` seconds; 0 stops it."""

    id: int
    interval: float = 1.0


@dataclass(frozen=True)
class SampleHost:
    """-> Telemetry with ``re``"""

    id: int


@dataclass(frozen=True)
class GetCompat:
    """-> Compat"""

    id: int
    profile: Profile


@dataclass(frozen=True)
class Verify:
    """Recompute samples with transformers on the host.  -> Verified"""

    id: int
    run: str
    samples: int = 3
    """The longest and the shortest are always among them; 0 checks the files alone."""
    seed: int | None = None
    """Draws the others; None draws a seed too, and the report says it."""
    dtype: ReferenceDtype = "auto"


@dataclass(frozen=True)
class Cancel:
    """Give up a preflight, a compatibility check or a verification that is under way.

    -> Done; the request itself is answered with Refused.
    """

    id: int
    asked: int
    """The ``id`` of the request."""


@dataclass(frozen=True)
class AgentStatus:
    """-> Status"""

    id: int


@dataclass(frozen=True)
class StopAgent:
    """Runs go on without it.  -> Done"""

    id: int
    only_idle: bool = False
    """Refused (``busy``) while there is another client, a running or a queued run."""


@dataclass(frozen=True)
class Ping:
    """-> Pong"""

    id: int


# ------------------------------------------------------------------ agent -> client


@dataclass(frozen=True)
class Welcome:
    re: int
    version: int
    archive: str
    """Hash of the archive this agent runs from."""
    pid: int
    host: str
    python: str
    started: float
    now: float
    """The host's clock; differences of clocks are the client's to show."""


@dataclass(frozen=True)
class Runs:
    re: int
    runs: tuple[RunSummary, ...]
    """The newest that fit a line, oldest first."""
    older: int = 0
    """How many older ones were left out; ask again with ``before``."""


@dataclass(frozen=True)
class Detail:
    re: int
    detail: RunDetail


@dataclass(frozen=True)
class Checked:
    re: int
    report: Report


@dataclass(frozen=True)
class Probing:
    """A preflight goes on: ``waiting`` names the probes that have not answered yet."""

    re: int
    done: int
    total: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True)
class Acted:
    """What was done, and what the check says now."""

    re: int
    done: tuple[str, ...]
    """A line each, in order: signals sent, who left and after how long, what was moved where."""
    verdict: Verdict
    """The same check, made again afterwards."""
    helped: bool
    """It no longer blocks or warns, or no longer offers this action."""


@dataclass(frozen=True)
class Started:
    re: int
    run: str
    queued: bool
    report: Report | None = None


@dataclass(frozen=True)
class Done:
    re: int
    text: str = ""


@dataclass(frozen=True)
class Cleared:
    """``removed`` is False for a preview: nothing was touched."""

    re: int
    removed: bool
    files: int
    bytes: int
    folder: str
    kept: tuple[str, ...] = ()
    """Names in the folder that are not this run's and stay (first 20)."""


@dataclass(frozen=True)
class Compat:
    re: int
    findings: tuple[PatchFinding, ...]
    versions: dict[str, str]
    """Distribution name -> version in the profile's interpreter."""
    seconds: float
    problems: tuple[str, ...] = ()
    """What could not be looked at in that interpreter, and why."""
    engine: str = ""
    """The engine that would run, whose patches these are."""


@dataclass(frozen=True)
class Verified:
    re: int
    report: VerifyReport


@dataclass(frozen=True)
class Status:
    re: int
    archive: str
    pid: int
    started: float
    folder: str
    clients: int
    running: tuple[str, ...]
    queued: tuple[str, ...]


@dataclass(frozen=True)
class Pong:
    re: int


@dataclass(frozen=True)
class Refused:
    """The request was understood and not done; the connection goes on."""

    re: int
    problem: Problem
    report: Report | None = None


@dataclass(frozen=True)
class Chunk:
    """Bytes of a stream, in order and without a gap: the next offset is offset + len(bytes)."""

    sub: int
    offset: int
    data: str
    """Base64, since a log can hold any byte."""
    caught_up: bool
    """The file ended here when this was read."""
    ended: bool = False
    """The run has ended and no byte will follow."""

    def raw(self) -> bytes:
        return base64.b64decode(self.data)

    @staticmethod
    def of(sub: int, offset: int, data: bytes, caught_up: bool, ended: bool = False) -> Chunk:
        return Chunk(sub, offset, base64.b64encode(data).decode("ascii"), caught_up, ended)


@dataclass(frozen=True)
class Telemetry:
    sample: HostSample
    re: int | None = None


@dataclass(frozen=True)
class RunChanged:
    summary: RunSummary


Message = Union[
    Hello,
    ListRuns,
    GetRun,
    RunPreflight,
    Act,
    Start,
    Resume,
    Abort,
    Clear,
    Subscribe,
    Unsubscribe,
    WatchHost,
    SampleHost,
    GetCompat,
    Verify,
    Cancel,
    AgentStatus,
    StopAgent,
    Ping,
    Welcome,
    Runs,
    Detail,
    Checked,
    Probing,
    Acted,
    Started,
    Done,
    Cleared,
    Compat,
    Verified,
    Status,
    Pong,
    Refused,
    Chunk,
    Telemetry,
    RunChanged,
]

MESSAGE_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}


def decode_message(line: bytes) -> Message:
    """One line of the wire; raises ProtocolError."""
    return cast(Message, decode(line, MESSAGE_TYPES))
