"""A run of the user's own script: prepared, started, watched, accounted for.

The same stages, events and files as ``worker.job``, for work that another process decides on.
``extract`` begins with the generator's first call, or with the first sample for a script that
has no generator.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3_agent.protocol.events import Event, Note, Plan, Skipped
from eagle3_agent.runs import RunFolder, RunRecord, sync_folder
from eagle3_agent.worker import manifest, model_info, plan, prepare, resume
from eagle3_agent.worker.dataset import Bad
from eagle3_agent.worker.dataset import Row as DataRow
from eagle3_agent.worker.job import Stages
from eagle3_agent.worker.manifest import Entry, Marker, digest
from eagle3_agent.worker.model_info import ITEM_SIZE
from eagle3_agent.worker.progress import Meter
from eagle3_agent.worker.resume import Kept

from . import channel
from .child import Child, ScriptError, find
from .folder import Folder
from .log import LogFollower
from .samples import Row, Wanted
from .watch import Watch, take

#: Seconds between two looks at the script's process.
_TICK = 0.2

#: Rows without a sample that are named one by one.
_NAMED = 1000


@dataclass(frozen=True)
class _Prepared:
    """What is known before the script starts."""

    marker: Marker
    plan: plan.Plan
    rows: dict[int, Row]
    """What the file of each usable row must hold."""
    entries: dict[int, Entry]
    """The manifest, whatever its lines are worth."""
    kept: Kept


class ScriptJob:
    """See ``worker.job.Job``: ``go`` once, ``abandon`` after anything went wrong."""

    def __init__(self, folder: RunFolder, record: RunRecord) -> None:
        self._run, self._profile, self._name = folder, record.profile, record.run
        self._output = Path(record.profile.output.dir)
        self.stages = Stages(folder)
        self._lock: int | None = None
        self._folder: Folder | None = None
        self._child: Child | None = None

    def go(self) -> None:
        """All stages; raises WorkerError or OSError."""
        script = find(self._profile.engine.script)
        self.stages.start("load", f"the data, then {script.name}")
        made = self._prepare()
        folder = self._folder = self._look_around(made)
        samples = folder.samples()
        self._tell_plan(made, samples)
        if len(samples) < len(made.rows):
            self._extract(script, made, folder)
        else:
            meter = Meter(made.plan.total, 0, reused=len(samples), skipped=made.plan.skipped)
            self._emit(meter.read(time.monotonic(), time.time()))
            self.stages.done("every sample was there")
        self.stages.start("done")
        self.stages.done()

    def abandon(self) -> None:
        """End the script and all its processes, remove what is half-written; never raises."""
        if self._child is not None:
            with suppress(Exception):
                self._child.end()
        if self._folder is not None:
            with suppress(Exception):
                self._folder.close()
        if self._lock is not None:
            # whoever wrote has been ended; nobody else writes under our lock
            with suppress(OSError):
                manifest.remove_partials(self._output)

    # ------------------------------------------------------------------ before the script

    def _prepare(self) -> _Prepared:
        """Read the data and the folder; what can be refused is refused here."""
        profile = self._profile
        info = model_info.read(Path(profile.model.path))
        prepare.check_layers(profile, info)
        data = prepare.open_data(profile, info)
        marker = prepare.make_marker(profile, info, self._name)
        there = manifest.examine(self._output, marker)
        entries = manifest.entries(self._output)
        rows: dict[int, Row] = {}
        made = plan.make(data.path, _recorded(data, rows), entries)
        kept = resume.check(self._output, marker, made, self._emit)
        self._lock = manifest.claim(self._output, there or marker)
        return _Prepared(marker, made, rows, entries, kept)

    def _look_around(self, made: _Prepared) -> Folder:
        """Take over whole samples that a killed attempt left without a line; set the rest aside.

        A script that goes on after the highest number takes any file for a sample.
        """
        marker, entries = made.marker, made.entries
        kept = {index: entries[index] for index in made.kept.indexes}
        # rows that this run does not have: fewer samples are asked for, say
        other = frozenset(entry.file for i, entry in entries.items() if i not in made.rows)
        wanted = Wanted(marker.output_format, marker.dtype, marker.layers, marker.hidden)
        folder = Folder(self._output, made.rows, wanted, kept=kept, ignored=other)
        taken = take(self._output, folder.settle())
        if taken:
            text = f"{len(taken)} files of an earlier attempt are whole and right: they are kept"
            self._note("info", text)
        good = Kept(known={entry.file for entry in folder.samples().values()})
        resume.set_aside(self._output, good, entries, made.plan, self._emit)
        folder.settle()
        return folder

    def _tell_plan(self, made: _Prepared, samples: dict[int, Entry]) -> None:
        marker = made.marker
        width = len(marker.layers) * marker.hidden * ITEM_SIZE[marker.dtype]
        for bad in made.plan.bad:
            self._emit(Skipped(time.time(), bad.index, bad.reason))
        if made.plan.skipped > len(made.plan.bad):
            text = (
                f"{made.plan.skipped} rows are skipped; the first {len(made.plan.bad)} are listed"
            )
            self._note("warning", text)
        total, tokens = made.plan.total, made.plan.tokens
        self._emit(Plan(time.time(), total, tokens, tokens * width, len(samples)))
        missing = [index for index in made.rows if index not in samples]
        if samples and missing and missing[0] < max(samples):
            self._note(
                "warning",
                f"row {missing[0]} has no sample, row {max(samples)} has one: a script that goes "
                "on after the highest number never fills such holes. The engines speculators and "
                "vllm do, in the same folder",
            )

    # ------------------------------------------------------------------ the script

    def _extract(self, script: Path, made: _Prepared, folder: Folder) -> None:
        log = LogFollower(self._run.output, _size(self._run.output))
        channel.path(self._run.path).unlink(missing_ok=True)
        self._child = Child(self._run.path, script, self._profile.engine.args)
        left = sum(r.tokens for i, r in made.rows.items() if i not in folder.samples())
        meter = Meter(
            made.plan.total, left, reused=len(folder.samples()), skipped=made.plan.skipped
        )
        watch = Watch(self._run, self._profile.model, self.stages, folder, log, meter)
        while (status := self._child.wait(_TICK)) is None:
            watch.tick()
        watch.tick()
        log.catch_up()
        self._child.judge(status, watch.ended, log.last_line)
        watch.begin_extract()
        self.stages.done()

        self.stages.start("write")
        watch.settle()
        self._keep_marker(made)
        self._account(made, folder, watch)
        sync_folder(self._output)
        folder.close()
        self.stages.done()

    def _keep_marker(self, made: _Prepared) -> None:
        """Some scripts begin by emptying their output folder, and the marker goes with the rest."""
        if self._output.is_dir() and not (self._output / manifest.MARKER).exists():
            self._lock = manifest.claim(self._output, made.marker)
            self._note("warning", f"the script has emptied {self._output} before it wrote into it")

    def _account(self, made: _Prepared, folder: Folder, watch: Watch) -> None:
        """What is missing and why; the last figures.  Raises ScriptError for nothing at all."""
        samples, unfit = folder.samples(), folder.unfit()
        if not samples and not unfit:
            raise ScriptError(
                f"{self._profile.engine.script} ended well and wrote no "
                f"{manifest.file_name(0, made.marker.output_format)} or the like into output.dir "
                f"= {self._output}: does it write somewhere else?"
            )
        wrong = {index: f"{found.name} {found.reason}" for index, found in unfit.items()}
        for index in made.rows:
            if index not in samples and index not in wrong:
                wrong[index] = "the script wrote no file for it"
        for index in sorted(wrong)[:_NAMED]:
            self._emit(Skipped(time.time(), index, wrong[index]))
        if len(wrong) > _NAMED:
            text = f"{len(wrong)} samples are missing or unfit; the first {_NAMED} are listed"
            self._note("warning", text)
        strangers = manifest.strangers(self._output, {e.file for e in samples.values()})
        others = [n for n in strangers if n not in {f.name for f in unfit.values()}]
        if others:
            shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
            text = f"a trainer would read {shown} of {self._output} as samples: move them away"
            self._note("warning", text)
        watch.last_word(len(samples), made.plan.skipped + len(wrong))

    def _emit(self, event: Event) -> None:
        self._run.append(event)

    def _note(self, level: Literal["info", "warning"], text: str) -> None:
        self._emit(Note(time.time(), level, text))


def _recorded(data: Iterable[DataRow], rows: dict[int, Row]) -> Iterator[DataRow]:
    """The same rows; of each usable one, what its file must hold."""
    for row in data:
        if not isinstance(row, Bad):
            sample = row.sample
            rows[sample.index] = Row(
                bytes.fromhex(digest(sample.input_ids)),
                bytes.fromhex(digest(sample.loss_mask)),
                len(sample.input_ids),
            )
        yield row


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
