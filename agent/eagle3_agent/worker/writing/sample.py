"""One sample's file from its first byte to its name, by whichever thread or process writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3_agent.worker.engines.base import Output
from eagle3_agent.worker.manifest import digest

from . import files, formats
from .formats import Sink
from .item import Item

Save = Callable[[Item, Output, Sink], None]


@dataclass(frozen=True)
class Whole:
    """A file that is complete, synced and under its name; as in its manifest line."""

    bytes: int
    sha256: str
    row: str
    mask: str


@dataclass(frozen=True)
class Names:
    """Where a file grows, and what it is called once it is whole."""

    temporary: Path
    final: Path


def write(
    item: Item,
    output: Output,
    names: Names,
    stopped: Callable[[], bool],
    save: Save = formats.save,
) -> Whole:
    """Raises Unfit, Misshapen, OSError, Stopped; then there is no file."""
    with files.NewFile(names.temporary, names.final, stopped) as file:
        save(item, output, file)
        file.keep()
    return Whole(file.size, file.sha256(), digest(item.input_ids), digest(item.loss_mask))
