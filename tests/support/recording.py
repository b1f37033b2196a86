"""Runs recorded on real hosts, as the host would tell of them at any moment."""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from eagle3_agent import causes
from eagle3_agent.protocol import decode_event, from_json
from eagle3_agent.protocol.events import Event
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.messages import Welcome
from eagle3_agent.protocol.values import HostSample, RunDetail, RunState, RunSummary
from eagle3_agent.runs import Exit, RunFolder, RunRecord

from .fakelink import FakeLink

ROOT = Path(__file__).parents[1] / "recorded" / "h200-tp2"
RUNS = ("0001", "0002", "0003", "0004")

#: vLLM's log lines name the day and second, without the year.
_STAMP = re.compile(rb"(?:INFO|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_YEAR = 2026


@dataclass(frozen=True)
class Recorded:
    """One run folder."""

    folder: RunFolder

    @cached_property
    def record(self) -> RunRecord:
        return self.folder.record()

    @cached_property
    def exit(self) -> Exit:
        end = self.folder.exit()
        assert end is not None
        return end

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines of ``events.jsonl``, each with its end."""
        return self.folder.events.read_bytes().splitlines(keepends=True)

    @cached_property
    def events(self) -> list[Event]:
        found = [decode_event(line) for line in self.lines]
        assert None not in found
        return [event for event in found if event is not None]

    @cached_property
    def samples(self) -> list[tuple[HostSample, bytes]]:
        """``gpu.jsonl``: each sample with its line."""
        if not self.folder.gpu.exists():
            return []
        lines = self.folder.gpu.read_bytes().splitlines(keepends=True)
        return [(from_json(HostSample, json.loads(line)), line) for line in lines]

    def standing(self, at: float) -> Standing:
        standing = Standing()
        for event in self.events:
            if event.t <= at:
                standing = fold(standing, event)
        return standing

    def summary(self, at: float = float("inf")) -> RunSummary:
        """The history's line as the agent makes it of the events until ``at``."""
        standing, record = self.standing(at), self.record
        over = at >= self.exit.ended
        state: RunState = self.exit.state if over else "running"
        return RunSummary(
            run=record.run,
            number=record.number,
            state=state,
            attempt=record.attempt,
            profile=record.profile.name,
            engine=record.engine,
            started=standing.spawned.t if standing.spawned else None,
            ended=self.exit.ended if over else None,
            samples=standing.samples,
            tokens=standing.tokens,
            tokens_per_second=standing.mean_rate(),
            bytes=standing.bytes,
            output_dir=record.profile.output.dir,
            model=record.profile.model.path,
            created=record.created,
            stage=standing.failed_stage or (standing.stage.name if standing.stage else ""),
            error=standing.error,
        )

    def detail(self, at: float = float("inf")) -> RunDetail:
        standing, record = self.standing(at), self.record
        return RunDetail(
            summary=self.summary(at),
            resolved=record.profile,
            preflight=record.preflight,
            forced=record.forced,
            patches=standing.patches,
            environment=record.environment,
            folder=f"/root/.local/state/eagle3/runs/{record.run}",
            stages=standing.stages,
            cause=causes.of_log(self.folder.output, standing.error) if standing.error else None,
        )

    def output(self, at: float = float("inf")) -> bytes:
        """The log until ``at``: a line without a time of its own goes with the one before."""
        kept: list[bytes] = []
        for line in self.folder.output.read_bytes().splitlines(keepends=True):
            stamp = _STAMP.search(line)
            if stamp and timegm((_YEAR, *map(int, stamp.groups()))) > at:
                break
            kept.append(line)
        return b"".join(kept)


@cache
def recorded(run: str) -> Recorded:
    return Recorded(RunFolder(ROOT / run))


@cache
def busy_sample() -> HostSample:
    """Both GPUs held by the two ranks of run 2, while it extracted."""
    return from_json(HostSample, json.loads((ROOT / "gpus-busy.json").read_bytes()))


def host_at(at: float) -> FakeLink:
    """The host at a moment (epoch seconds), as a console that connects then is told of it."""
    begun = [recorded(run) for run in RUNS if recorded(run).record.created <= at]
    runs = tuple(replace(one.summary(at)) for one in begun)
    link = FakeLink(runs=runs, now=at, latency=0.031)
    link.welcome = Welcome(1, 1, "dev", 4100, "h200", "3.12.3", at, at)
    for one in begun:
        run, over = one.record.run, at >= one.exit.ended
        link.details[run] = one.detail(at)
        events = (line for line, e in zip(one.lines, one.events) if e.t <= at)
        link.write(run, "events", b"".join(events), ended=over)
        link.write(run, "gpu", b"".join(raw for s, raw in one.samples if s.t <= at), ended=over)
        link.write(run, "output", one.output() if over else one.output(at), ended=over)
    seen = [s for one in begun for s, _ in one.samples if s.t <= at]
    link.samples = [replace(seen[-1], t=at)] if seen else []
    return link


def moment(run: str, *, after_extract: float) -> float:
    """Epoch seconds of a moment of a run, counted from the start of its extract stage."""
    stages = recorded(run).standing(float("inf")).stages
    return next(s.started for s in stages if s.name == "extract") + after_extract
