"""The product's own engines, driven as a run drives them: writers, ledger and reporter included."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from eagle3_agent.protocol.events import Event, Throughput
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineName,
    EngineSection,
    HostSection,
    ModelSection,
    OutputFormat,
    OutputSection,
    Profile,
)
from eagle3_agent.worker import engines, feed
from eagle3_agent.worker.engines.base import Output, Sample
from eagle3_agent.worker.progress import Bounds, Meter, Reporter
from eagle3_agent.worker.writing import bounds
from eagle3_agent.worker.writing.ledger import Follower

from . import files
from .memory import Watched
from .spec import Round, Spec, rows
from .versions import device_bytes, versions

_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}


class Ours:
    """See ``spec.Side``."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._samples = [Sample(i, row, [1] * len(row)) for i, row in enumerate(rows(spec.data))]
        self._tokens = sum(len(s.input_ids) for s in self._samples)
        self._told: list[Event] = []
        self._generated = self._opening = 0.0
        self._captures: list[Any] = []
        _note_attaching(self._captures)
        _note_calls(self._opened, self._mark)
        self._engine = engines.create(spec.side)
        self._loaded = self._engine.load(_profile(spec), self._told.append)
        list(self._engine.capture(self._samples[:1]))
        self.about = {**versions(), "source": self._loaded.source, "device": self._loaded.device}
        self._plain_peak = self._peak_without_capture()

    def _peak_without_capture(self) -> int | None:
        """The most bytes that torch holds on the device while this engine runs full steps and
        keeps nothing; None where the model is not in this process or on no device."""
        if not device_bytes() or not self._captures:
            return None
        engine: Any = self._engine
        from eagle3_agent.worker.writing.pool import layout
        from vllm import SamplingParams

        capture = self._captures.pop()
        capture.detach()
        capture.detach = _done  # attaching anew asks for it once more
        capture._buffer = None  # what it holds of the device
        count = max(1, 3 * self._spec.tokens // self._spec.longest)
        prompts = [{"prompt_token_ids": s.input_ids} for s in self._samples[:count]]
        _forget_peak()
        sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        engine._llm.generate(prompts, sampling, use_tqdm=False)
        peak = device_bytes()["peak"]
        kind = layout(cast(OutputFormat, self._spec.kind))
        engine._rpc("eagle3_attach", list(self._spec.layers), kind)
        return peak

    def _opened(self, seconds: float) -> None:
        self._opening = max(self._opening, seconds)

    def _mark(self) -> None:
        self._generated = self._generated or time.perf_counter()

    def round(self) -> Round:
        folder = files.emptied(self._spec.out)
        output = self._output(folder)
        awaited = feed.Awaited(self._spec.side, len(self._samples))
        told: list[Event] = []
        reporter = Reporter(
            Meter(len(self._samples), self._tokens, reused=0, skipped=0),
            Follower(Path(output.ledger)),
            awaited,
            Bounds(output.threads, output.buffer_bytes, self._token_bytes()),
            told.append,
        )
        self._generated = self._opening = 0.0
        _forget_peak()
        with Watched(self._spec.watch_memory) as watched:
            reporter.begin()
            began = time.perf_counter()
            samples = awaited.ask(iter(self._samples))
            self._engine.extract(samples, output, reporter.check)
            durable = time.perf_counter() - began
        reporter.finish()
        awaited.settle(samples)
        pattern = "hs_*.safetensors" if output.kind == "safetensors" else "data_*.pt"
        written = files.size(folder, pattern, len(self._samples))
        extra = {
            **self._extra(told, output),
            "resident": watched.found,
        }
        files.emptied(self._spec.out)
        seconds = self._generated - began
        return Round(self._tokens, seconds, self._opening, durable, written, extra)

    def _extra(self, told: list[Event], output: Output) -> dict[str, Any]:
        newest = [event for event in told if isinstance(event, Throughput)][-1:]
        figures = {k: v for event in newest for k, v in vars(event).items() if k != "t"}
        step = max(self._spec.tokens, self._spec.longest + 1)
        return {
            "throughput": figures,
            "threads": output.threads,
            "buffer": output.buffer_bytes,
            "device": device_bytes(),
            "device, nothing kept": self._plain_peak,
            "step_states": step * self._token_bytes(),
        }

    def _token_bytes(self) -> int:
        return len(self._spec.layers) * self._loaded.hidden * _ITEM[self._loaded.dtype]

    def _output(self, folder: Path) -> Output:
        spec = self._spec
        return Output(
            folder=str(folder),
            kind=cast(OutputFormat, spec.kind),
            layers=spec.layers,
            dtype=self._loaded.dtype,
            hidden=self._loaded.hidden,
            metadata={},
            ledger=str(folder / "samples.jsonl"),
            threads=spec.threads or bounds.threads(),
            buffer_bytes=spec.buffer or bounds.buffer_bytes(spec.longest * self._token_bytes()),
        )

    def close(self) -> None:
        self._engine.close()


def _profile(spec: Spec) -> Profile:
    vllm = spec.side != "transformers"
    return Profile(
        name="bench",
        host=HostSection(os.environ.get("_", "python")),
        model=ModelSection(
            spec.model,
            max_model_len=spec.longest,
            gpu_memory_utilization=spec.memory,
            dtype=cast(Any, spec.dtype),
        ),
        capture=CaptureSection(spec.layers),
        data=DataSection(spec.data, seq_length=spec.longest),
        output=OutputSection(spec.out, format=cast(OutputFormat, spec.kind)),
        engine=EngineSection(
            cast(EngineName, spec.side),
            max_num_batched_tokens=max(spec.tokens, spec.longest + 1) if vllm else None,
            max_num_seqs=spec.sequences if vllm else None,
        ),
    )


def _note_calls(opened: Callable[[float], None], mark: Callable[[], None]) -> None:
    """Tell how long opening took, and when the last row is computed and only writing is left.

    Engine vllm has its worker in this process, speculators calls it in another.
    """
    from eagle3_agent.worker.capture.core import Capture
    from eagle3_agent.worker.writing.pool import Pool

    finish, opening = Pool.finish, Capture.open

    def finished(self: Pool, *args: Any, **kwargs: Any) -> None:
        mark()
        finish(self, *args, **kwargs)

    def timed(self: Capture, output: Output) -> None:
        began = time.perf_counter()
        opening(self, output)
        opened(time.perf_counter() - began)

    Pool.finish = finished  # type: ignore[method-assign]
    Capture.open = timed  # type: ignore[method-assign]
    try:
        from eagle3_agent.worker.compat.driver import Driver
    except ImportError:  # no vLLM: nothing is driven
        return
    call = Driver.call

    def called(self: Driver, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "eagle3_finish":
            mark()
        began = time.perf_counter()
        found = call(self, method, *args, **kwargs)
        if method == "eagle3_open":
            opened(time.perf_counter() - began)
        return found

    Driver.call = called  # type: ignore[method-assign]


def _note_attaching(found: list[Any]) -> None:
    """Keep the captures that are made in this process: those of engine vllm."""
    from eagle3_agent.worker.capture.core import Capture

    init = Capture.__init__

    def noted(self: Capture, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        found.append(self)

    Capture.__init__ = noted  # type: ignore[method-assign]


def _done() -> None:
    """What was to be done is done."""


def _forget_peak() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
