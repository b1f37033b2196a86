"""What a side is told and what it answers: plain values, lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Spec:
    """One side's work."""

    side: str
    """A key of ``side.SIDES``."""
    model: str
    """A checkpoint folder with weights."""
    data: str
    """A file of JSON lines, a list of token ids each."""
    out: str
    """An empty folder that the side may fill; each round empties it again."""
    layers: tuple[int, ...]
    longest: int
    """Tokens of the longest row."""
    kind: str = "speculators-pt"
    dtype: str = "bfloat16"
    tokens: int = 8192
    """Token budget of a step."""
    sequences: int = 256
    memory: float = 0.8
    """Share of the GPU's memory for the engine."""
    threads: int | None = None
    """Writer threads; None leaves the product's choice."""
    buffer: int | None = None
    """Bytes of states on their way; None leaves the product's choice."""
    watch_memory: bool = False
    """Sample this process's resident memory while a round goes on."""

    def line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Spec:
        values = json.loads(text)
        return Spec(**{**values, "layers": tuple(values["layers"])})


@dataclass
class Round:
    """One pass over the data."""

    tokens: int
    seconds: float
    """Until the model had computed the last row: generation returned."""
    opening: float = 0.0
    """Part of ``seconds``, once a run: taking and pinning host memory before the first step."""
    durable: float | None = None
    """Until every file was synced; None where nothing is written."""
    bytes: int = 0
    """Of the files."""
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Side(Protocol):
    """Loads in its constructor, which takes a Spec."""

    about: dict[str, Any]
    """Versions, device and whatever else is known once it has loaded."""

    def round(self) -> Round:
        """The whole data once; every round does the same."""
        ...

    def close(self) -> None: ...


def rows(path: str) -> list[list[int]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="ascii").splitlines()]


def made_up(count: int, shortest: int, longest: int, vocab: int) -> list[list[int]]:
    """Token ids, the same in every run; a dense model's cost depends on their number alone."""
    spread = longest - shortest + 1
    lengths = [shortest + i * 89 % spread for i in range(count)]
    return [
        [(i * 7919 + j * j * 31 + j * 17) % vocab for j in range(n)] for i, n in enumerate(lengths)
    ]


def write_rows(path: Path, data: list[list[int]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in data), encoding="ascii")
