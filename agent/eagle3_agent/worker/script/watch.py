"""One attempt of the script as it goes: its word, its bars and its files become events."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from eagle3_agent.protocol.events import Event, Note, Patched, Progress, Wrote
from eagle3_agent.protocol.values import ModelSection
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import manifest
from eagle3_agent.worker.errors import OutputError
from eagle3_agent.worker.job import Stages
from eagle3_agent.worker.manifest import Entry
from eagle3_agent.worker.progress import Meter

from . import channel
from .folder import Folder, Found
from .log import LogFollower, Pace

#: Seconds between two events of progress, at least.
_INTERVAL = 0.25

#: Unfit files that are told of while the script runs; all are told in the end.
_WARNED = 5


class Watch:
    """Not thread-safe: one thread calls it."""

    def __init__(
        self,
        run: RunFolder,
        model: ModelSection,
        stages: Stages,
        folder: Folder,
        log: LogFollower,
        meter: Meter,
    ) -> None:
        self._run, self._model, self._stages = run, model, stages
        self._folder, self._log, self._meter = folder, log, meter
        self._channel = channel.Follower(run.path)
        self._pace = Pace()
        self._extracting = self._standing = False
        self._told = 0.0
        self._last: Progress | None = None
        self._newest: Entry | None = None
        self._warned = 0
        self.ended: channel.Ended | None = None
        """What left the script, once it has said so."""

    def tick(self) -> None:
        """Look at everything once; raises OSError."""
        for line in self._channel.read():
            self._hear(line)
        self._account(self._folder.look())
        for bar in self._log.read():
            if self._extracting:
                self._pace.see(bar, time.monotonic())
        if self._extracting and time.monotonic() - self._told >= _INTERVAL:
            self._tell()

    def begin_extract(self) -> None:
        if not self._extracting:
            self._extracting = True
            if not self._standing:
                self._stages.done()
            self._stages.start("extract")
            self._meter.begin(time.monotonic())

    def settle(self) -> None:
        """Once the script has ended: look at what is left of its files."""
        self._account(self._folder.settle())
        self._tell()

    def last_word(self, done: int, skipped: int) -> None:
        """The figures that stand, whatever was counted on the way."""
        reading = self._meter.read(time.monotonic(), time.time())
        self._emit(replace(reading, done=done, skipped=skipped, eta=None))

    # ------------------------------------------------------------------ what the script says

    def _hear(self, line: channel.Line) -> None:
        if isinstance(line, channel.Findings):
            for finding in line.found:
                self._emit(Patched(time.time(), finding, applied=finding.status == "needed"))
        elif isinstance(line, channel.Remark):
            self._note(line.text)
        elif isinstance(line, channel.Asked):
            self._hear_asked(line)
        elif isinstance(line, channel.Standing):
            if not self._standing and not self._extracting:
                self._standing = True
                self._stages.done(f"{line.device}, {line.source}".rstrip(", "))
        elif isinstance(line, channel.Generating):
            self.begin_extract()
        else:
            self.ended = line

    def _hear_asked(self, asked: channel.Asked) -> None:
        """Differences that do not make the files wrong; those that do end the script itself."""
        if asked.same_model is None:
            self._note(
                f"the script loads {asked.model}, which is no folder: whether it is the profile's "
                f"{self._model.path} cannot be told before verify"
            )
        for name, theirs in (
            ("max_model_len", asked.max_model_len),
            ("tensor_parallel_size", asked.tensor_parallel_size),
        ):
            mine = getattr(self._model, name)
            if theirs is not None and theirs != mine:
                self._note(
                    f"the script loads the model with {name} = {theirs}, the profile says {mine}: "
                    "checks and claims before the start went by the profile"
                )

    # ------------------------------------------------------------------ its files

    def _account(self, found: list[Found]) -> None:
        for entry in take(self._folder.path, found):
            self.begin_extract()
            self._meter.add(entry.tokens, entry.bytes)
            self._newest = entry
        for one in found:
            if one.entry is None:
                self._warned += 1
                if self._warned <= _WARNED:
                    more = (
                        "; more may follow, the end lists them" if self._warned == _WARNED else ""
                    )
                    self._note(f"{one.name} {one.reason}: it does not count{more}")

    def _tell(self) -> None:
        """Progress where it changed, and the newest file."""
        now = time.monotonic()
        reading = self._meter.read(now, time.time())
        if reading.eta is None or reading.tokens == 0:
            reading = replace(reading, eta=self._pace.eta(now))
        last, self._told = self._last, now
        if last is not None and replace(reading, t=last.t, window=last.window) == last:
            return
        newest, self._newest = self._newest, None
        if newest is not None:
            self._emit(
                Wrote(
                    t=reading.t,
                    index=newest.index,
                    file=newest.file,
                    tokens=newest.tokens,
                    bytes=newest.bytes,
                    shape=(newest.tokens, newest.hidden),
                    layers=newest.layers,
                    dtype=newest.dtype,
                )
            )
        self._last = reading
        self._emit(reading)

    def _note(self, text: str) -> None:
        self._emit(Note(time.time(), "warning", text))

    def _emit(self, event: Event) -> None:
        self._run.append(event)


def take(folder: Path, found: list[Found]) -> list[Entry]:
    """Give each new sample its line in the manifest; raises OutputError."""
    entries = [f.entry for f in found if f.entry is not None]
    for entry in entries:
        try:
            manifest.append(folder, entry)
        except OSError as error:
            raise OutputError(
                f"{folder / manifest.MANIFEST} cannot be written ({error.strerror or error}): "
                "resume the run once it can"
            ) from error
    return entries
