"""One run's stages, in this process: read, load, warm up, extract, write.

What ends it from outside, and what is told of a failure, is ``run``'s.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from eagle3_agent.protocol.events import Event, Note, Plan, Skipped, Stage
from eagle3_agent.protocol.values import StageName
from eagle3_agent.runs import RunFolder, RunRecord

from . import engines, feed, formats, manifest, model_info, plan, prepare
from .dataset import Dataset
from .engines.base import Engine, Loaded, Sample
from .manifest import Marker
from .model_info import ITEM_SIZE, ModelInfo
from .progress import Meter, Reporter
from .writer import Writer

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


class Job:
    """A run in this process; ``go`` once, ``abandon`` after anything went wrong."""

    def __init__(self, folder: RunFolder, record: RunRecord) -> None:
        self._folder, self._record, self._profile = folder, record, record.profile
        self._output = Path(record.profile.output.dir)
        self.stages = Stages(folder)
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._reporter: Reporter | None = None
        self._lock: int | None = None

    def go(self) -> None:
        """All stages; raises WorkerError, EngineError, or whatever a library raises."""
        self.stages.start("load", f"the data, then engine {self._record.engine}")
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
        if self._reporter is not None:
            with suppress(Exception):
                self._reporter.finish()
        if self._engine is not None:
            with suppress(Exception):
                self._engine.close()

    # ------------------------------------------------------------------ before the load

    def _prepare(self) -> Prepared:
        """The data is read and the folder claimed: what can be refused is refused here."""
        profile = self._profile
        info = model_info.read(Path(profile.model.path))
        prepare.check_layers(profile, info)
        data = prepare.open_data(profile, info)
        marker = prepare.make_marker(profile, info, self._record.run)
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
        self._engine = engines.create(self._record.engine)
        loaded = self._engine.load(self._profile, self._emit)
        feed.check_loaded(loaded, prepared.marker, prepared.info)
        self.stages.done(loaded.device)

        samples = feed.pending(prepared.data, prepared.plan.reused)
        first = next(samples)
        self.stages.start("warmup")
        self._warm_up(self._engine, first, loaded)
        self.stages.done()

        reporter = self._reporter = Reporter(self._meter(prepared), self._emit)
        self._writer = self._make_writer(loaded, reporter)
        self.stages.start("extract")
        reporter.begin()
        for batch in feed.batches(chain([first], samples), self._engine):
            for captured in feed.capture(self._engine, batch, self._profile, loaded):
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
        kind = self._profile.output.format
        return Writer(
            self._output,
            kind,
            loaded.dtype,
            save=lambda captured, file: formats.save(captured, kind, loaded.dtype, file),
            written=reporter.wrote,
            rejected=reporter.skipped,
        )

    def _warm_up(self, engine: Engine, sample: Sample, loaded: Loaded) -> None:
        """A few tokens through the whole path: what is wrong shows before the long job."""
        short = replace(
            sample,
            input_ids=sample.input_ids[:_WARMUP_TOKENS],
            loss_mask=sample.loss_mask[:_WARMUP_TOKENS],
        )
        for _ in feed.capture(engine, [short], self._profile, loaded):
            pass

    def _emit(self, event: Event) -> None:
        self._folder.append(event)

    def _note(self, level: Literal["info", "warning"], text: str) -> None:
        self._emit(Note(time.time(), level, text))
