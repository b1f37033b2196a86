"""What became of each sample, told by the process that writes to the run: ``samples.jsonl``.

One line per sample (``Written`` or ``Rejected``), a ``Measured`` now and then, and a ``Fault``
when the writing has stopped.  Both sides may live in one process; no lock is shared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Union

from eagle3_agent import journal
from eagle3_agent.protocol import ProtocolError, encode, from_json
from eagle3_agent.worker.manifest import Entry


@dataclass(frozen=True)
class Written:
    """A sample's file is complete, in place, and in the manifest."""

    entry: Entry


@dataclass(frozen=True)
class Rejected:
    """A sample whose states must not be trained on: nothing was written."""

    index: int
    reason: str


@dataclass(frozen=True)
class Fault:
    """The pool has stopped; later samples of this attempt are not written."""

    title: str
    """What happened, in one clause."""
    text: str
    """What to do, or the trace of what was not foreseen."""
    kind: Literal["full", "output", "capture"] = "output"
    """No space left, another error of the output folder, or states that could not be had."""


@dataclass(frozen=True)
class Measured:
    """Where the time went: sums since the capturing process began to extract, in seconds."""

    tokens: int
    """Computed by the model."""
    steps: int
    prefill: float
    capture: float
    copy: float
    wait: float
    write: float
    """Summed over the writers: ``Pool.seconds``."""
    padding: float
    """Share, 0 to 1, of the computed rows that belong to no sample."""
    fill: float
    """Share, 0 to 1, of the steps' token budget that was used."""
    buffer_peak: int
    """Bytes."""
    disk_free: int | None = None
    """Bytes that this user may still write to the output's filesystem, as it said after the newest
    file; None before that, and where it does not say."""
    disk_total: int | None = None


Line = Union[Written, Rejected, Fault, Measured]

_KINDS: dict[str, type[Line]] = {
    "Written": Written,
    "Rejected": Rejected,
    "Fault": Fault,
    "Measured": Measured,
}


class Ledger:
    """The writing side; callable from several threads and processes at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: Line) -> None:
        """Raises OSError."""
        journal.append_bytes(self._path, encode(line))


class Follower:
    """The reading side: each line once, as soon as it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Line]:
        """Lines since the last call; none while the file is not there yet.

        A torn last line is left for the next call, a line that is no ledger line is left out: the
        sample that it spoke of then counts as unanswered.  Raises OSError.
        """
        found = []
        for after, text in journal.lines(self._path, self._offset):
            self._offset = after
            line = _decode(text)
            if line is not None:
                found.append(line)
        return found


def _decode(text: bytes) -> Line | None:
    try:
        body = json.loads(text)
        return from_json(_KINDS[body.pop("type")], body)
    except (ValueError, TypeError, KeyError, AttributeError, ProtocolError, RecursionError):
        return None
