"""The contract between a run and an engine; knows no device and no library.

A run calls ``load`` once, then ``capture`` many times, then ``close``.  The
run decides what is captured and where it is written; an engine only turns
token ids into states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.values import Profile

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
    repeats repeated; dtype = ``Loaded.dtype``.  S = ``len(sample.input_ids)``.  May be views: the
    writer copies what does not own its storage."""


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


class Engine(Protocol):
    """How to run one library.  Not thread-safe: one thread calls it."""

    name: str
    batch_tokens: int
    """A call of ``capture`` gets about this many tokens at most, and always one sample at least.
    May depend on what ``load`` found."""
    batch_samples: int
    """A call of ``capture`` gets this many samples at most."""

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        """Bring the model up.  Emits ``Load`` where shards are known, ``Patched`` and ``Note``.

        Raises EngineError, or whatever the library raises.
        """
        ...

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        """States of each sample exactly once, in any order.

        Lazy: holds about one batch, and what was yielded is the caller's.  After an exception
        the engine is not used again, except for ``close``.
        """
        ...

    def close(self) -> None:
        """Free devices and end helper processes; callable at any time, also twice."""
        ...
