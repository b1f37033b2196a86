"""One run from its folder to its last file: stages, events, and what ends it.

The final state is the supervisor's to decide; here are only the facts for it:
the last stage is ``done`` when every file is flushed, and a Failure says why not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3_agent.protocol.events import Event, Failure, Note, Plan, Skipped, Stage
from eagle3_agent.protocol.values import Profile, StageName
from eagle3_agent.runs import RunFolder, RunRecord

from . import dataset, engines, failure, manifest, model_info, plan, rows
from .dataset import Bad, Dataset, Limits
from .engines.base import Captured, Engine, EngineError, Loaded, Sample
from .errors import CaptureError, ModelError, WorkerError
from .manifest import CONVENTION, Marker
from .model_info import ITEM_SIZE, ModelInfo
from .progress import Meter, Reporter
from .writer import Writer

_WARMUP_TOKENS = 16


class Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(path: Path) -> int:
    """Run what ``path`` asks for; returns the worker's exit status.

    On SIGTERM or SIGINT cleans up and then dies of that signal.
    """
    folder = RunFolder(path.resolve())
    job: Job | None = None
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        job = Job(folder, folder.record())
        job.go()
        return 0
    except Stopped as stopped:
        return _die(job, stopped.number)
    except BaseException as error:
        return _fail(folder, job, error)


def _stop(number: int, _: FrameType | None) -> None:
    # one is enough: what cleans up must not be interrupted by its repeats
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _die(job: Job | None, number: int) -> int:
    if job is not None:
        job.abandon()
    print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _fail(folder: RunFolder, job: Job | None, error: BaseException) -> int:
    if isinstance(error, (WorkerError, EngineError)):
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    try:
        # first of all: a close that hangs must not cost the cause
        folder.append(Failure(time.time(), failure.describe(error)))
        if job is not None:
            job.stages.failed()
    except OSError as unwritten:
        print(f"{folder.events}: {unwritten}", file=sys.stderr, flush=True)
    if job is not None:
        job.abandon()
    return 1


class Stages:
    """The stage that goes on; stages do not nest."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._name: StageName | None = None

    def start(self, name: StageName, detail: str = "") -> None:
        self._name = name
        self._folder.append(Stage(time.time(), name, "start", detail))

    def done(self, detail: str = "") -> None:
        if self._name is not None:
            self._folder.append(Stage(time.time(), self._name, "done", detail))
            self._name = None

    def failed(self) -> None:
        if self._name is not None:
            self._folder.append(Stage(time.time(), self._name, "failed"))
            self._name = None


@dataclass(frozen=True)
class Prepared:
    """What is known before the model is loaded."""

    info: ModelInfo
    marker: Marker
    data: Dataset
    plan: plan.Plan


class Job:
    """A run in this process; ``go`` once, ``abandon`` after anything went wrong."""

    def __init__(self, folder: RunFolder, record: RunRecord) -> None:
        self._folder, self._record, self._profile = folder, record, record.profile
        self._output = Path(record.profile.output.dir)
        self.stages = Stages(folder)
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._lock: int | None = None

    def go(self) -> None:
        """All stages; raises WorkerError, EngineError, or whatever a library raises."""
        self.stages.start("load", "reading the data")
        prepared = self._prepare()
        if prepared.plan.pending:
            self._extract(prepared)
        else:
            self._folder.append(self._meter(prepared).read(time.monotonic(), time.time()))
            self.stages.done("every sample was there")
        self.stages.start("done")
        self.stages.done()

    def abandon(self) -> None:
        """Stop writing, remove half-written files, free the devices; never raises."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.abort()
        if self._engine is not None:
            with suppress(Exception):
                self._engine.close()

    # ------------------------------------------------------------------ before the load

    def _prepare(self) -> Prepared:
        """The data is read and the folder claimed: what can be refused is refused here."""
        profile = self._profile
        info = model_info.read(Path(profile.model.path))
        check_layers(profile, info)
        data = open_data(profile, info)
        marker = make_marker(profile, info, self._record.run)
        there = manifest.examine(self._output, marker)
        began = time.monotonic()
        made = plan.make(data.path, data, self._output)
        self._tell_plan(made, info, time.monotonic() - began)
        self._lock = manifest.claim(self._output, there or marker)
        return Prepared(info, marker, data, made)

    def _tell_plan(self, made: plan.Plan, info: ModelInfo, seconds: float) -> None:
        dtype = model_info.run_dtype(self._profile.model.dtype, info)
        width = len(self._profile.capture.layers) * info.hidden * ITEM_SIZE[dtype]
        for bad in made.bad:
            self._emit(Skipped(time.time(), bad.index, bad.reason))
        if made.skipped > len(made.bad):
            self._note(
                "warning", f"{made.skipped} rows are skipped; the first {len(made.bad)} are listed"
            )
        self._emit(
            Plan(time.time(), made.total, made.tokens, made.tokens * width, len(made.reused))
        )
        self._note("info", f"read {made.total} rows, {made.tokens} tokens in {seconds:.1f} s")
        if made.truncated:
            self._note(
                "info",
                f"{made.truncated} samples are cut to data.seq_length = "
                f"{self._profile.data.seq_length}: {made.dropped} tokens dropped",
            )
        if dtype == "float32" and self._profile.model.dtype == "auto":
            self._note(
                "info",
                "dtype auto keeps the checkpoint's float32: files are twice as "
                "large as with bfloat16",
            )

    # ------------------------------------------------------------------ with the model

    def _extract(self, prepared: Prepared) -> None:
        self.stages.done()
        self.stages.start("load", f"engine {self._record.engine}")
        self._engine = engines.create(self._record.engine)
        loaded = self._engine.load(self._profile, self._emit)
        check_loaded(loaded, prepared)
        self.stages.done(loaded.device)

        samples = pending(prepared.data, prepared.plan.reused)
        first = next(samples)
        self.stages.start("warmup")
        self._warm_up(self._engine, first, loaded)
        self.stages.done()

        reporter = Reporter(self._meter(prepared), self._emit)
        self._writer = self._make_writer(loaded, reporter)
        self.stages.start("extract")
        reporter.begin()
        for batch in batches(chain([first], samples), self._engine):
            for captured in self._capture(self._engine, batch, loaded):
                self._writer.submit(captured)
            reporter.check()
        self.stages.done()

        self.stages.start("write")
        self._writer.finish()
        reporter.finish()
        self._engine.close()
        self.stages.done()

    def _meter(self, prepared: Prepared) -> Meter:
        made = prepared.plan
        left = made.tokens - made.reused_tokens
        return Meter(made.total, left, reused=len(made.reused), skipped=made.skipped)

    def _make_writer(self, loaded: Loaded, reporter: Reporter) -> Writer:
        def rejected(index: int, reason: str) -> None:
            self._emit(Skipped(time.time(), index, reason))
            reporter.skipped()

        return Writer(
            self._output,
            self._profile.output.format,
            loaded.dtype,
            written=reporter.wrote,
            rejected=rejected,
        )

    def _warm_up(self, engine: Engine, sample: Sample, loaded: Loaded) -> None:
        """A few tokens through the whole path: what is wrong shows before the long job."""
        short = replace(
            sample,
            input_ids=sample.input_ids[:_WARMUP_TOKENS],
            loss_mask=sample.loss_mask[:_WARMUP_TOKENS],
        )
        for _ in self._capture(engine, [short], loaded):
            pass

    def _capture(self, engine: Engine, batch: list[Sample], loaded: Loaded) -> Iterator[Captured]:
        """What the engine yields, once it is proven to be what was asked for."""
        awaited = {sample.index for sample in batch}
        for captured in engine.capture(batch):
            if captured.sample.index not in awaited:
                raise CaptureError(
                    f"engine {engine.name} returned sample {captured.sample.index} "
                    "twice or unasked: a fault of the engine"
                )
            awaited.remove(captured.sample.index)
            check_states(captured, self._profile, loaded)
            yield captured
        if awaited:
            raise CaptureError(
                f"engine {engine.name} returned nothing for sample {min(awaited)}: "
                "a fault of the engine"
            )

    def _emit(self, event: Event) -> None:
        self._folder.append(event)

    def _note(self, level: Any, text: str) -> None:
        self._emit(Note(time.time(), level, text))


# ---------------------------------------------------------------------- pure parts


def open_data(profile: Profile, info: ModelInfo) -> Dataset:
    limits = Limits(
        vocab=info.vocab,
        seq_length=profile.data.seq_length,
        max_model_len=profile.model.max_model_len,
        max_samples=profile.data.max_samples,
    )
    return dataset.read(
        Path(profile.data.path),
        Path(profile.model.path),
        limits,
        trust_remote_code=profile.model.trust_remote_code,
    )


def make_marker(profile: Profile, info: ModelInfo, name: str) -> Marker:
    """What the samples of run ``name`` have in common; raises DataError."""
    return Marker(
        format=1,
        run=name,
        model=profile.model.path,
        model_fingerprint=info.fingerprint,
        data=profile.data.path,
        data_fingerprint=rows.fingerprint(Path(profile.data.path)),
        layers=profile.capture.layers,
        convention=CONVENTION,
        dtype=model_info.run_dtype(profile.model.dtype, info),
        hidden=info.hidden,
        output_format=profile.output.format,
    )


def pending(data: Dataset, reused: set[int]) -> Iterator[Sample]:
    """Samples in the data's order, without those that are there."""
    for row in data:
        if not isinstance(row, Bad) and row.sample.index not in reused:
            yield row.sample


def batches(samples: Iterator[Sample], engine: Engine) -> Iterator[list[Sample]]:
    """Consecutive samples within the engine's limits; one sample at least."""
    batch: list[Sample] = []
    tokens = 0
    for sample in samples:
        length = len(sample.input_ids)
        full = len(batch) >= engine.batch_samples or tokens + length > engine.batch_tokens
        if batch and full:
            yield batch
            batch, tokens = [], 0
        batch.append(sample)
        tokens += length
    if batch:
        yield batch


def check_layers(profile: Profile, info: ModelInfo) -> None:
    """Raises ModelError naming the layers that the model does not have."""
    wrong = [layer for layer in profile.capture.layers if not 0 <= layer < info.layers]
    if wrong or not profile.capture.layers:
        raise ModelError(
            f"capture.layers = {list(profile.capture.layers)}: {info.path} has the layers 0 to "
            f"{info.layers - 1}"
        )


def check_loaded(loaded: Loaded, prepared: Prepared) -> None:
    """Raises ModelError when the engine runs another dtype or model than the files will say."""
    marker = prepared.marker
    if loaded.dtype != marker.dtype:
        raise ModelError(
            f"the engine computes in {loaded.dtype}, asked was {marker.dtype}: "
            f"set model.dtype = {loaded.dtype!r}"
        )
    if loaded.hidden != marker.hidden or loaded.layers != prepared.info.layers:
        raise ModelError(
            f"the engine loaded {loaded.layers} layers of hidden size {loaded.hidden}, config.json "
            f"says {prepared.info.layers} of {marker.hidden}: copy the model again"
        )


def check_states(captured: Captured, profile: Profile, loaded: Loaded) -> None:
    """Raises CaptureError unless there is one ``[S, H]`` tensor of the dtype per asked layer."""
    want = (len(captured.sample.input_ids), loaded.hidden)
    layers = profile.capture.layers
    shapes = [tuple(state.shape) for state in captured.states]
    if shapes != [want] * len(layers):
        raise CaptureError(
            f"sample {captured.sample.index}: the engine returned states of shape {shapes}, "
            f"asked were {len(layers)} of {want}"
        )
    dtypes = {str(state.dtype).removeprefix("torch.") for state in captured.states}
    if dtypes != {loaded.dtype}:
        raise CaptureError(
            f"sample {captured.sample.index}: the engine returned {', '.join(sorted(dtypes))}, "
            f"it had said {loaded.dtype}"
        )
