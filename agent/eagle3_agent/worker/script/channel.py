"""What the script's process tells the run's worker: lines of ``script.jsonl`` in the run folder.

A file and no pipe: nothing blocks, nothing is lost with a process, and every process that the
script starts may write to it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from eagle3_agent import journal
from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.codec import decode
from eagle3_agent.protocol.values import ErrorInfo, PatchFinding

#: Names the run folder, in the environment of the script and of every process below it.
VARIABLE = "EAGLE3_SCRIPT_RUN"


@dataclass(frozen=True)
class Findings:
    """The probes' conclusions, told once what is needed has been applied."""

    found: tuple[PatchFinding, ...]


@dataclass(frozen=True)
class Remark:
    """A warning for whoever reads the run."""

    text: str


@dataclass(frozen=True)
class Asked:
    """The script makes a generator; told before the load."""

    model: str
    layers: tuple[int, ...] | None
    """None where the library chooses."""
    max_model_len: int | None
    tensor_parallel_size: int | None
    same_model: bool | None
    """Whether it is the profile's, by content; None for a name that is no folder."""


@dataclass(frozen=True)
class Standing:
    """The generator stands: the model is loaded."""

    layers: tuple[int, ...]
    dtype: str
    device: str
    source: str
    """How the states are had, in words."""


@dataclass(frozen=True)
class Generating:
    """The first call of ``generate`` begins."""


@dataclass(frozen=True)
class Ended:
    """An exception, SystemExit included, left the script."""

    error: ErrorInfo


Line = Union[Findings, Remark, Asked, Standing, Generating, Ended]

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Findings, Remark, Asked, Standing, Generating, Ended)
}


def path(run: Path) -> Path:
    return run / "script.jsonl"


def run_folder() -> Path:
    """The run that this process, or one above it, was started for; raises KeyError."""
    return Path(os.environ[VARIABLE])


def tell(line: Line) -> None:
    """From the script's process or one below it.  A disk that is full costs the line alone."""
    try:
        journal.append(path(run_folder()), line)
    except (OSError, ProtocolError):
        pass  # the script's own error, if there is one, is about to be printed


class Follower:
    """The reading side."""

    def __init__(self, run: Path) -> None:
        self._path = path(run)
        self._offset = 0

    def read(self) -> list[Line]:
        """Whole lines since the last call; lines that are none of ours are left out."""
        found: list[Line] = []
        for offset, text in journal.lines(self._path, self._offset):
            self._offset = offset
            try:
                found.append(decode(text, _KINDS))
            except ProtocolError:
                continue
        return found
