"""engine.py REPORT FOLDER FORMAT RANKS ENDING: engine speculators from load to close.

ENDING is how the last extraction is made to fail: ``killed`` (a vLLM worker dies), ``watch`` (the
run asks for an end) or ``disk`` (the output folder is gone).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle3_agent.protocol.events import Event, Patched
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)
from eagle3_agent.worker.engines.base import Loaded, Output, Sample
from eagle3_agent.worker.engines.speculators import SpeculatorsEngine
from eagle3_agent.worker.writing.ledger import Fault, Follower
from support import vllm_library as library
from support import vllm_tiny as tiny

LAYERS = (5, 1, 3, 7, 3)
LENGTHS = (1, 5, 17, 64, 100, 255, 256)
LIMITS = EngineSection("speculators", max_num_batched_tokens=300, max_num_seqs=7)


class Asked(Exception):
    """What a run raises in its watch."""


def profile(folder: Path, kind: Any, ranks: int) -> Profile:
    return Profile(
        name="tiny",
        host=HostSection(sys.executable),
        model=ModelSection(str(folder / "model"), ranks, max_model_len=256),
        capture=CaptureSection(LAYERS),
        data=DataSection("rows.jsonl", seq_length=256),
        output=OutputSection(str(folder / "out"), format=kind),
        engine=LIMITS,
    )


def samples(count: int) -> list[Sample]:
    rows = tiny.sequences([LENGTHS[(n + n // 7) % len(LENGTHS)] for n in range(count)])
    # indices with holes, as a resumed run has them
    return [Sample(3 * n, row, [i % 2 for i in range(len(row))]) for n, row in enumerate(rows)]


def output(folder: Path, kind: Any, loaded: Loaded, name: str = "out") -> Output:
    (folder / name).mkdir()
    return Output(
        folder=str(folder / name),
        kind=kind,
        layers=LAYERS,
        dtype=loaded.dtype,
        hidden=loaded.hidden,
        metadata={},
        ledger=str(folder / f"{name}.jsonl"),
        threads=2,
        buffer_bytes=1 << 20,  # below what the samples are, so that the model waits
    )


def worst(found: Output, asked: list[Sample], truth: tiny.Truth) -> float:
    """The worst relative error over all files; infinite for another sample's."""
    error = 0.0
    for sample in asked:
        states = truth.states(sample.input_ids)
        ids, mask, layers = _read(found, sample.index)
        if ids != list(sample.input_ids) or mask not in (None, list(sample.loss_mask)):
            return float("inf")
        for layer, state in zip(LAYERS, layers, strict=True):
            error = max(error, tiny.error(state, states[layer]))
    return error


def _read(found: Output, index: int) -> tuple[list[int], list[int] | None, list[Any]]:
    folder = Path(found.folder)
    if found.kind == "speculators-pt":
        data = torch.load(folder / f"data_{index}.pt", weights_only=True, mmap=True)
        return data["input_ids"].tolist(), data["loss_mask"].tolist(), data["hidden_states"]
    from safetensors.torch import load_file

    data = load_file(folder / f"hs_{index}.safetensors")
    return data["token_ids"].tolist(), None, list(data["hidden_states"].unbind(1))


def values(engine: SpeculatorsEngine, asked: list[Sample], truth: tiny.Truth) -> float:
    error = 0.0
    for captured in engine.capture(asked):
        states = truth.states(captured.sample.input_ids)
        for layer, state in zip(LAYERS, captured.states, strict=True):
            error = max(error, tiny.error(state, states[layer]))
    return error


def failing(engine: Any, ending: str, target: Output) -> str:
    """What an extraction raises that is made to fail on its way."""
    executor = engine._generator.executor
    follower = Follower(Path(target.ledger))

    def feed() -> Iterator[Sample]:
        for n, sample in enumerate(samples(400)):
            if n == 100 and ending == "killed":
                os.kill(executor.workers[-1].proc.pid, signal.SIGKILL)
            if n == 100 and ending == "disk":
                while Path(target.folder).exists():  # a file may be on its way into it
                    shutil.rmtree(target.folder, ignore_errors=True)
            yield replace(sample, index=n)

    calls = []

    def watch() -> None:
        calls.append(1)
        if ending == "watch" and len(calls) > 3:
            raise Asked("stop")
        for line in follower.read():
            if isinstance(line, Fault):
                raise Asked(line.title)

    return library.told(lambda: engine.extract(feed(), target, watch))


def timed(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main(report: str, folder: str, kind: str, ranks: str, ending: str) -> None:
    root = Path(folder)
    truth = tiny.Truth(tiny.make("llama", root / "model"))
    events: list[Event] = []
    engine: Any = SpeculatorsEngine()
    loaded = engine.load(profile(root, kind, int(ranks)), events.append)
    limits = engine._generator.vllm_config.scheduler_config
    asked = samples(120)
    target = output(root, kind, loaded)
    before = values(engine, asked[:5], truth)
    ticks: list[float] = []
    engine.extract(iter(asked), target, lambda: ticks.append(time.monotonic()))
    found = {
        "loaded": [loaded.dtype, loaded.hidden, loaded.layers, loaded.vocab, loaded.device],
        "source": loaded.source,
        "limits": [limits.max_num_batched_tokens, limits.max_num_seqs],
        "applied": sorted(e.finding.patch for e in events if isinstance(e, Patched) and e.applied),
        "files": len(list(Path(target.folder).glob("*_*"))),
        "worst": worst(target, asked, truth),
        "by value": [before, values(engine, asked[:5], truth)],
        "watched": len(ticks),
        "raised": failing(engine, ending, output(root, kind, loaded, "again")),
        "closing": timed(engine.close),
    }
    engine.close()
    found["processes"] = len(multiprocessing.active_children())
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
