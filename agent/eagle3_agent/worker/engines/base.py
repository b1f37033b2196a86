"""The contract between a run and an engine; knows no device and no library.

A run calls ``load`` once, ``capture`` on a few tokens, ``extract`` once, then
``close``.  The run decides what is captured and where it is written; an engine
turns token ids into states and has the process that holds them write the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.values import OutputFormat, Profile

Emit = Callable[[Event], None]
"""Appends one event to the run's journal; may be called from any thread."""


class EngineError(Exception):
    """A cause that an engine can name in one sentence; shown to a person as it stands."""


@dataclass(frozen=True)
class Sample:
    """One row of the data, ready to run: never empty, every id within the vocabulary."""

    index: int
    """Place in the data, 0-based; skipped rows leave holes."""
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    """1 where the draft model learns, as long as ``input_ids``."""


@dataclass(frozen=True)
class Captured:
    """The states of one sample."""

    sample: Sample
    states: tuple[Any, ...]
    """One tensor ``[S, H]`` on the CPU per entry of ``profile.capture.layers``, in that order,
    repeats repeated; dtype = ``Loaded.dtype``.  S = ``len(sample.input_ids)``."""


@dataclass(frozen=True)
class Loaded:
    """What an engine knows once the model stands."""

    dtype: str
    """Of the states: ``float32``, ``bfloat16`` or ``float16``."""
    hidden: int
    layers: int
    """Decoder layers of the model."""
    vocab: int
    """Rows of the embedding: the first id that is out of range."""
    device: str
    """For a person: ``cpu``, ``cuda:0``, ``8 x NVIDIA H200``."""
    source: str = ""
    """How the states are had, for a person: ``hooks on 4 decoder layers``."""


@dataclass(frozen=True)
class Output:
    """Where and how samples are written.  Plain values: it travels to the capturing process."""

    folder: str
    """Exists, holds the marker, and is locked by the run."""
    kind: OutputFormat
    layers: tuple[int, ...]
    """As asked, repeats included: the order of the states in a file."""
    dtype: str
    hidden: int
    metadata: dict[str, str]
    """Recorded in each file where the format has a place for it."""
    ledger: str
    """The file through which the writers tell the run what became of each sample."""
    threads: int
    """Writers: processes where the states lie in shared memory, else threads."""
    buffer_bytes: int
    """Bound on the bytes of states that are between the model and the disk."""


Watch = Callable[[], None]
"""Called by ``extract`` at least four times a second; what it raises ends the run."""


class Engine(Protocol):
    """How to run one library.  Not thread-safe: one thread calls it."""

    name: str

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        """Bring the model up.  Emits ``Load`` where shards are known, ``Patched`` and ``Note``.

        Raises EngineError, or whatever the library raises.
        """
        ...

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        """States of a few samples by value, each exactly once, in any order; writes nothing."""
        ...

    def extract(self, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        """Capture every sample and write its file; returns once the last one is on the disk.

        Takes from ``samples`` as it goes.  What becomes of each sample, and a writer's error, is
        told through the ledger alone.  After an exception, ``watch``'s included, the engine is
        not used again, except for ``close``.
        """
        ...

    def close(self) -> None:
        """Free devices and end helper processes; callable at any time, also twice."""
        ...
