"""Engine ``speculators``: the library's own generator over the vLLM that is installed.

Probes the pair, applies the named patches that it needs in this process, and makes the
real ``VllmHiddenStatesGenerator``.  What the patches do is ``compat``'s; ``extract`` drives
the generator's scheduler and executor, and vLLM's rank 0 writes the files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.events import Note, Patched
from eagle3_agent.protocol.values import PatchFinding, Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.compat import probe, registry
from eagle3_agent.worker.compat.driver import Driver, call
from eagle3_agent.worker.compat.errors import RemoteError
from eagle3_agent.worker.compat.generate import SOURCE
from eagle3_agent.worker.compat.patch import Settings
from eagle3_agent.worker.compat.sources import Sources
from eagle3_agent.worker.writing.pool import layout

from . import machine
from .base import Captured, Emit, EngineError, Loaded, Output, Sample, Watch
from .lane import Lane
from .room import room_for_one
from .ticker import Ticker

#: Requests in flight where the profile says nothing: enough short samples to fill a step.
_SEQUENCES = 128

#: Steps' worth of samples that wait or run: one step is scheduled while another runs.
_AHEAD = 2

#: Seconds that workers get to end a step and to stop writing when the engine is closed.
_CLOSING = 20.0


class SpeculatorsEngine:
    """See ``base.Engine``."""

    name = "speculators"

    def __init__(self) -> None:
        self._generator: Any = None

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        generator_class = prepare(profile, emit)
        self._generator = start(generator_class, profile)
        loaded = self._loaded()
        call(self._generator.executor, "eagle3_reserve", machine.buffer_bytes(profile, loaded))
        return loaded

    def _loaded(self) -> Loaded:
        config = self._generator.vllm_config
        text = config.model_config.hf_text_config
        return Loaded(
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            hidden=int(text.hidden_size),
            layers=int(text.num_hidden_layers),
            vocab=int(config.model_config.get_vocab_size()),
            device=machine.devices(config.parallel_config.tensor_parallel_size),
            source=getattr(self._generator, SOURCE),
        )

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        results = self._generator.generate([list(s.input_ids) for s in samples])
        for sample, result in zip(samples, results, strict=True):
            yield Captured(sample, tuple(result.pop("hidden_states")))

    def extract(self, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        lane = Lane("vllm-steps")
        try:
            with Ticker(watch) as ticker:
                _Extraction(self._generator, lane, watch, ticker).run(samples, output)
        finally:
            lane.close()

    def close(self) -> None:
        generator, self._generator = self._generator, None
        executor = getattr(generator, "executor", None)
        if executor is None:
            return
        with suppress(Exception):  # workers that are dead or busy are ended by the next call
            executor.collective_rpc("eagle3_reset", timeout=_CLOSING)
        executor.shutdown()


class _Extraction:
    """One ``extract``.  This thread feeds and schedules; the lane has the workers run the steps.

    A step is scheduled while the one before it runs: nothing is decoded, so what the next
    step holds does not depend on what this one computes.
    """

    def __init__(self, generator: Any, lane: Lane, watch: Watch, ticker: Ticker) -> None:
        self._driver = Driver(generator)
        self._lane = lane
        self._watch = watch
        self._ticker = ticker
        limits = generator.vllm_config.scheduler_config
        self._sequences = _AHEAD * int(limits.max_num_seqs)
        self._tokens = _AHEAD * int(limits.max_num_batched_tokens)
        self._count = 0

    def run(self, samples: Iterator[Sample], output: Output) -> None:
        self._call("eagle3_open", output)
        before: Future[Any] | None = None
        while True:
            self._top_up(samples)
            step = self._driver.schedule()
            running = self._lane.submit(self._driver.run, step)
            if before is not None:
                self._ended(before)
            before = running
            if not step.total_num_scheduled_tokens:
                break
        self._ended(before)
        if self._driver.waiting:
            raise EngineError(
                f"vLLM's scheduler has no room for {self._driver.waiting} samples of "
                f"{self._driver.uncomputed} tokens: raise model.gpu_memory_utilization, or lower "
                "model.max_model_len"
            )
        self._call("eagle3_finish")

    def _top_up(self, samples: Iterator[Sample]) -> None:
        """Queue samples, two steps' worth of tokens and of sequences."""
        added: list[tuple[str, int, bytes]] = []
        waiting, tokens = self._driver.waiting, self._driver.uncomputed
        while waiting < self._sequences and tokens < self._tokens:
            sample = next(samples, None)
            if sample is None:
                break
            name = f"sample_{self._count}"
            self._count += 1
            self._driver.add(name, sample.input_ids)
            waiting, tokens = waiting + 1, tokens + len(sample.input_ids)
            added.append((name, sample.index, bytes(sample.loss_mask)))
        if added:
            # the lane keeps the order: workers hear of these before the step that holds them
            self._lane.submit(self._driver.call, "eagle3_expect", added)

    def _call(self, method: str, *args: Any) -> None:
        self._ended(self._lane.submit(self._driver.call, method, *args))

    def _ended(self, future: Future[Any]) -> None:
        """Wait for a call of the lane, under watch; raises what it raised."""
        try:
            self._ticker.during(future.result)
        except RemoteError:
            # a writer's error is told through the ledger, and is the cause of this one
            self._watch()
            raise


def prepare(profile: Profile, emit: Emit) -> Any:
    """The generator's class under the patches that this pair needs, ready for ``start``.

    For whoever makes that engine: the run, and the dry construction that comes before it.
    Raises EngineError for what would fail after the load.
    """
    sources = Sources.installed()
    found = registry.findings(sources)
    _refuse(sources, found)
    note = probe.untried(sources, probe.installed_versions(), SpeculatorsEngine.name)
    if note:
        emit(Note(time.time(), "warning", note))
    # a forked worker would inherit this process's threads and their locks
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    generator_class = _patched_class(profile, found)
    for finding in filter(registry.is_patch, found):
        emit(Patched(time.time(), finding, applied=finding.status == "needed"))
    info = model_info.read(Path(profile.model.path))
    if profile.model.dtype == "auto":
        text = f"model.dtype auto: {info.dtype}, the checkpoint's own"
        emit(Note(time.time(), "info", text))
    room_for_one(profile.model, info)  # refuses here what would fail after the load
    return generator_class


def _refuse(sources: Sources, found: Sequence[PatchFinding]) -> None:
    """Raise EngineError where a library is missing, or where it cannot be told what is needed."""
    for name in ("vllm", "speculators"):
        if name not in sources.roots:
            raise EngineError(
                f"{name} is not installed: install it in host.python's environment, or use "
                f"another engine ({'transformers' if name == 'vllm' else 'vllm'})"
            )
    unsure = registry.undecided(found)
    if unsure:
        first = unsure[0]
        raise EngineError(
            f"cannot tell whether {len(unsure)} patches are needed for this vLLM and speculators, "
            f"so the data might be wrong (first: {first.patch}: {first.evidence}). Use vllm 0.16.0 "
            "with speculators 0.3.0 or 0.4.0.1, or the engine vllm"
        )


def _patched_class(profile: Profile, found: Sequence[PatchFinding]) -> Any:
    try:
        registry.apply(found, _settings(profile))
        from speculators.data_generation.vllm_hidden_states_generator import (
            VllmHiddenStatesGenerator,
        )
    except ImportError as error:
        raise EngineError(
            f"speculators or vLLM cannot be imported by {profile.host.python}: {error}. "
            "Install what is missing there"
        ) from error
    return VllmHiddenStatesGenerator


def start(generator_class: Any, profile: Profile) -> Any:
    """Make the generator as the profile says; loads the model."""
    model = profile.model
    try:
        return generator_class(
            model_path=model.path,
            layer_ids=list(profile.capture.layers),
            max_model_len=model.max_model_len,
            gpu_memory_utilization=model.gpu_memory_utilization,
            tensor_parallel_size=model.tensor_parallel_size,
        )
    except RemoteError as error:
        if error.info.type.endswith("CaptureRefused"):
            raise EngineError(error.info.message) from error
        raise


def _settings(profile: Profile) -> Settings:
    tokens, sequences = profile.engine.max_num_batched_tokens, profile.engine.max_num_seqs
    if tokens is not None and sequences is not None and tokens < sequences:
        raise EngineError(
            f"engine.max_num_batched_tokens ({tokens}) is below engine.max_num_seqs "
            f"({sequences}): a step holds at least a token of each"
        )
    if sequences is None:
        sequences = _SEQUENCES if tokens is None else min(_SEQUENCES, tokens)
    return Settings(
        dtype=profile.model.dtype,
        trust_remote_code=profile.model.trust_remote_code,
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        layout=layout(profile.output.format),
    )
