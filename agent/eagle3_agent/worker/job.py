"""One run's stages, in this process: read, load, warm up, extract, write.

What ends it from outside, and what is told of a failure, is ``run``'s.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from eagle3_agent.protocol.events import Event, Note, Plan, Skipped, Stage
from eagle3_agent.protocol.values import StageName
from eagle3_agent.runs import RunFolder, RunRecord

from . import engines, extras, feed, manifest, model_info, plan, prepare, resume
from .dataset import Dataset
from .engines.base import Engine, Loaded, Output, Sample
from .errors import OutputError
from .manifest import Marker
from .model_info import ITEM_SIZE, ModelInfo
from .progress import Bounds, Meter, Reporter
from .resume import Kept
from .writing import bounds
from .writing.ledger import Follower
from .writing.pool import PoolFailed

_WARMUP_TOKENS = 16


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
    kept: Kept

    @property
    def pending(self) -> int:
        """Samples to capture."""
        return self.plan.usable - len(self.kept.indexes)

    @property
    def token_bytes(self) -> int:
        """Of the states of one token, all layers."""
        marker = self.marker
        return len(marker.layers) * marker.hidden * ITEM_SIZE[marker.dtype]


class Job:
    """A run in this process; ``go`` once, ``abandon`` after anything went wrong."""

    def __init__(self, folder: RunFolder, record: RunRecord) -> None:
        self._folder, self._record, self._profile = folder, record, record.profile
        self._output = Path(record.profile.output.dir)
        self.stages = Stages(folder)
        self._engine: Engine | None = None
        self._reporter: Reporter | None = None
        self._lock: int | None = None

    def go(self) -> None:
        """All stages; raises WorkerError, EngineError, or whatever a library raises."""
        self.stages.start("load", f"the data, then engine {self._record.engine}")
        prepared = self._prepare()
        if prepared.pending:
            self._extract(prepared)
        else:
            self._emit(self._meter(prepared).read(time.monotonic(), time.time()))
            self.stages.done("every sample was there")
        self.stages.start("write")
        entries = manifest.entries(self._output)
        for problem in extras.write(self._output, prepared.marker, entries, self._profile):
            self._note("warning", problem)
        if self._engine is not None:
            self._engine.close()
        self.stages.done()
        self._unlock()
        self.stages.start("done")
        self.stages.done()

    def abandon(self) -> None:
        """Free the devices, stop writing, remove half-written files; never raises."""
        if self._engine is not None:
            with suppress(Exception):
                self._engine.close()
        if self._reporter is not None:
            with suppress(Exception):
                self._reporter.finish()
        if self._lock is not None:
            # the process that wrote may have been killed; nobody else writes under our lock
            with suppress(OSError):
                manifest.remove_partials(self._output)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ------------------------------------------------------------------ before the load

    def _prepare(self) -> Prepared:
        """The data is read and the folder claimed: what can be refused is refused here."""
        profile = self._profile
        info = model_info.read(Path(profile.model.path))
        prepare.check_layers(profile, info)
        data = prepare.open_data(profile, info)
        marker = prepare.make_marker(profile, info, self._record.run)
        there = manifest.examine(self._output, marker)
        entries = manifest.entries(self._output)
        began = time.monotonic()
        made = plan.make(data.path, data, entries)
        seconds = time.monotonic() - began
        kept = resume.check(self._output, marker, made, self._emit)
        prepared = Prepared(info, marker, data, made, kept)
        self._tell_plan(prepared, seconds)
        self._lock = manifest.claim(self._output, there or marker)
        resume.set_aside(self._output, kept, entries, made, self._emit)
        return prepared

    def _tell_plan(self, prepared: Prepared, seconds: float) -> None:
        made = prepared.plan
        for bad in made.bad:
            self._emit(Skipped(time.time(), bad.index, bad.reason))
        if made.skipped > len(made.bad):
            self._note(
                "warning", f"{made.skipped} rows are skipped; the first {len(made.bad)} are listed"
            )
        size = made.tokens * prepared.token_bytes
        self._emit(Plan(time.time(), made.total, made.tokens, size, len(prepared.kept.indexes)))
        self._note("info", f"read {made.total} rows, {made.tokens} tokens in {seconds:.1f} s")
        if made.truncated:
            self._note(
                "info",
                f"{made.truncated} samples are cut to data.seq_length = "
                f"{self._profile.data.seq_length}: {made.dropped} tokens dropped",
            )
        if prepared.marker.dtype == "float32" and self._profile.model.dtype == "auto":
            self._note(
                "info",
                "dtype auto keeps the checkpoint's float32: files are twice as "
                "large as with bfloat16",
            )

    # ------------------------------------------------------------------ with the model

    def _extract(self, prepared: Prepared) -> None:
        engine = self._engine = engines.create(self._record.engine)
        loaded = engine.load(self._profile, self._emit)
        feed.check_loaded(loaded, prepared.marker, prepared.info)
        self.stages.done("; ".join(filter(None, (loaded.device, loaded.source))))

        samples = feed.pending(prepared.data, prepared.kept.indexes)
        first = next(samples)
        self.stages.start("warmup")
        self._warm_up(engine, first, loaded)
        self.stages.done()

        self._folder.ledger.unlink(missing_ok=True)  # of a process that was started before
        output = self._output_of(prepared)
        awaited = feed.Awaited(engine.name, prepared.pending)
        reporter = self._reporter = Reporter(
            self._meter(prepared),
            Follower(self._folder.ledger),
            awaited,
            Bounds(output.threads, output.buffer_bytes, prepared.token_bytes),
            self._emit,
        )
        self.stages.start("extract")
        reporter.begin()
        samples = awaited.ask(chain([first], samples))
        try:
            engine.extract(samples, output, reporter.check)
        except Exception as error:
            # where the writers have told a cause, it says more than what it did to the engine
            reporter.finish()
            if isinstance(error, PoolFailed):  # whose cause could not be told
                raise OutputError(str(error)) from error
            raise
        reporter.finish()
        awaited.settle(samples)
        # the manifest has it all; without an end it stays, for whoever looks into the failure
        self._folder.ledger.unlink(missing_ok=True)
        self.stages.done()

    def _warm_up(self, engine: Engine, sample: Sample, loaded: Loaded) -> None:
        """A few tokens through the model: what is wrong shows before the long job."""
        short = replace(
            sample,
            input_ids=sample.input_ids[:_WARMUP_TOKENS],
            loss_mask=sample.loss_mask[:_WARMUP_TOKENS],
        )
        feed.check_capture(list(engine.capture([short])), short, self._profile, loaded)

    def _meter(self, prepared: Prepared) -> Meter:
        made, kept = prepared.plan, prepared.kept
        left = made.tokens - kept.tokens
        return Meter(made.total, left, reused=len(kept.indexes), skipped=made.skipped)

    def _output_of(self, prepared: Prepared) -> Output:
        """Where and how the samples go; what the profile leaves open is chosen and told."""
        asked, marker = self._profile.output, prepared.marker
        longest = prepared.plan.longest * prepared.token_bytes
        output = Output(
            folder=str(self._output),
            kind=asked.format,
            layers=marker.layers,
            dtype=marker.dtype,
            hidden=marker.hidden,
            metadata=marker.metadata(),
            ledger=str(self._folder.ledger),
            threads=asked.writer_threads or bounds.threads(),
            buffer_bytes=asked.buffer_bytes or bounds.buffer_bytes(longest),
        )
        self._note(
            "info",
            f"{output.threads} writers; at most {output.buffer_bytes / 2**30:.2f} GiB of "
            f"host memory for states on their way to the disk, the longest sample takes "
            f"{longest / 2**30:.3f} GiB",
        )
        return output

    def _emit(self, event: Event) -> None:
        self._folder.append(event)

    def _note(self, level: Literal["info", "warning"], text: str) -> None:
        self._emit(Note(time.time(), level, text))
