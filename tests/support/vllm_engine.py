"""Engine ``vllm`` in a test's script: a profile, samples, and what its files hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from eagle3_agent.protocol import values
from eagle3_agent.worker.engines.base import Loaded, Output, Sample
from eagle3_agent.worker.engines.vllm import VllmEngine
from eagle3_agent.worker.writing import bounds
from eagle3_agent.worker.writing.ledger import Follower, Measured, Rejected, Written

from . import vllm_tiny as tiny

BUDGET = 256
"""Tokens of a step: fewer than the longest sample."""


def profile(
    checkpoint: Path, layers: Sequence[int], *, ranks: int = 1, length: int = 512, **changes: Any
) -> values.Profile:
    """``changes``: of the sections ``model`` and ``engine``."""
    engine = {"max_num_batched_tokens": BUDGET} | changes.pop("engine", {})
    # vLLM 0.32 wants this share of the host's memory to be free, whatever it takes of it
    model = {"gpu_memory_utilization": 0.3} | changes.pop("model", {})
    return values.Profile(
        name="test",
        host=values.HostSection(sys.executable),
        model=values.ModelSection(str(checkpoint), ranks, length, **model),
        capture=values.CaptureSection(tuple(layers)),
        data=values.DataSection("rows.jsonl", seq_length=length),
        output=values.OutputSection("out", buffer_bytes=16 << 20, **changes.pop("output", {})),
        engine=values.EngineSection("vllm", **engine),
    )


@contextmanager
def running(asked: values.Profile) -> Iterator[tuple[VllmEngine, Loaded, list[Any]]]:
    """The engine, loaded, with the events that it emitted; closed whatever happens."""
    events: list[Any] = []
    engine = VllmEngine()
    try:
        yield engine, engine.load(asked, events.append), events
    finally:
        engine.close()


def samples(rows: Sequence[Sequence[int]]) -> list[Sample]:
    """The loss mask differs from row to row."""
    return [
        Sample(i, row, [(i + j) % 3 % 2 for j in range(len(row))]) for i, row in enumerate(rows)
    ]


class Extraction:
    """One ``extract`` into a folder of its own, and what it told."""

    def __init__(
        self,
        engine: VllmEngine,
        loaded: Loaded,
        folder: Path,
        layers: Sequence[int],
        **changes: Any,
    ) -> None:
        self.folder, self.layers, self._engine = folder / "out", list(layers), engine
        self.folder.mkdir(parents=True)
        plain = {
            "folder": str(self.folder),
            "kind": "speculators-pt",
            "layers": tuple(layers),
            "dtype": loaded.dtype,
            "hidden": loaded.hidden,
            "metadata": {},
            "ledger": str(folder / "samples.jsonl"),
            "threads": 2,
            "buffer_bytes": bounds.buffer_bytes(1 << 20),
        }
        self.output = Output(**{**plain, **changes})
        self.watched = 0

    def run(self, wanted: Sequence[Sample], watch: Callable[[], None] | None = None) -> Extraction:
        def watched() -> None:
            self.watched += 1
            if watch is not None:
                watch()

        self._engine.extract(iter(wanted), self.output, watched)
        lines = Follower(Path(self.output.ledger)).read()
        self.written = [line.entry.index for line in lines if isinstance(line, Written)]
        self.rejected = [line for line in lines if isinstance(line, Rejected)]
        self.measured = next(line for line in reversed(lines) if isinstance(line, Measured))
        return self

    def worst(self, wanted: Sequence[Sample], truth: tiny.Truth) -> float:
        """The largest error of any layer of any sample; infinite where a file is not right."""
        if sorted(self.written) != [s.index for s in wanted] or self.rejected:
            return float("inf")
        return max(max(self.errors(sample, truth)) for sample in wanted)

    def errors(self, sample: Sample, truth: tiny.Truth) -> list[float]:
        """One for each asked layer."""
        ids, states = self._read(sample)
        if ids != list(sample.input_ids):
            return [float("inf")]
        real = truth.states(sample.input_ids)
        return [tiny.error(s, real[at]) for at, s in zip(self.layers, states, strict=True)]

    def _read(self, sample: Sample) -> tuple[list[int], list[Any]]:
        if self.output.kind == "safetensors":
            from safetensors.torch import load_file

            found = load_file(self.folder / f"hs_{sample.index}.safetensors")
            return found["token_ids"].tolist(), list(found["hidden_states"].unbind(1))
        saved = torch.load(self.folder / f"data_{sample.index}.pt", weights_only=True)
        same_mask = saved["loss_mask"].tolist() == list(sample.loss_mask)
        return saved["input_ids"].tolist() if same_mask else [], saved["hidden_states"]


def by_value(
    engine: VllmEngine, wanted: Sequence[Sample], layers: Sequence[int], truth: tiny.Truth
) -> float:
    """The largest error of what ``capture`` gives."""
    worst, seen = 0.0, []
    for captured in engine.capture(wanted):
        seen.append(captured.sample.index)
        real = truth.states(captured.sample.input_ids)
        for layer, found in zip(layers, captured.states, strict=True):
            worst = max(worst, tiny.error(found, real[layer]))
    return worst if sorted(seen) == [s.index for s in wanted] else float("inf")
