"""What the console knows, and how each piece of news changes it; pure.

``State`` is one frozen value; ``apply(state, input)`` gives the next one.
Screens read it, the app owns it.  Nothing here waits, draws or connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Union

from eagle3_agent.protocol.events import Event, Load, Progress, Stage, Throughput, Wrote
from eagle3_agent.protocol.fold import Standing, fold
from eagle3_agent.protocol.values import (
    HostSample,
    Profile,
    RunDetail,
    RunState,
    RunSummary,
)

from . import checks
from .checks import Checks
from .eta import Past
from .linkstate import Connecting, Kept, LinkState, Live, Reconnecting

#: Seconds of history behind a GPU's line.
HISTORY = 1800.0
#: Events kept for the dashboard and the run's page.
TAIL = 500
#: Of those, sample files: they would push everything else out.
WROTE = 60
#: Run pages kept.
DETAILS = 32
#: Clocks that differ by less (seconds) are taken as one.
CLOCK_SLACK = 2.0
#: A host's clock that is further off than this (seconds) is not believed.
ABSURD = 1e10

ENDED: tuple[RunState, ...] = ("completed", "incomplete", "failed", "aborted", "lost")


@dataclass(frozen=True)
class Point:
    """One value of a history; ``t`` by the host's clock, ``value`` in percent."""

    t: float
    value: float | None


@dataclass(frozen=True)
class State:
    target: str = ""
    now: float = 0.0
    """Epoch seconds, the workstation's clock."""
    read_only: bool = False
    profile: Profile | None = None
    profile_path: str = ""
    """The file that it came from; empty without one."""
    profile_run: str = ""
    """The run whose profile it was, when it came from the history."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the file in this session, by key; None for one left out."""
    link: LinkState = field(default_factory=lambda: Connecting("opening the connection"))
    shown_at: float | None = None
    """When the newest data on the screen came (workstation's clock)."""
    catching_up: frozenset[str] = frozenset()
    """What has not been heard again since the link came back: ``host``, ``run``."""
    caught_up_at: float | None = None
    clock_offset: float = 0.0
    """Host's clock minus the workstation's, seconds."""
    host: HostSample | None = None
    history: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    """``gpu:INDEX`` utilisation, ``cpu`` and ``memory``, oldest first."""
    runs: tuple[RunSummary, ...] = ()
    """Newest first."""
    runs_known: bool = False
    current: str = ""
    """The run on the dashboard."""
    standing: Standing = field(default_factory=Standing)
    """Of the current run."""
    tail: tuple[Event, ...] = ()
    """Newest events of the current run, without what the figures say."""
    details: Mapping[str, RunDetail] = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)
    """The preflight."""
    kept_at: float | None = None
    """When the history was seen that is shown of a host without a link; None of a live one."""
    retry_from: float | None = None
    """Since when the next attempt at the link is waited for."""

    @property
    def host_now(self) -> float:
        return self.now + self.clock_offset

    @property
    def live(self) -> bool:
        return isinstance(self.link, Live)

    @property
    def run(self) -> RunSummary | None:
        """The current run's line of the history."""
        return self.find(self.current)

    @property
    def detail(self) -> RunDetail | None:
        return self.details.get(self.current)

    @property
    def simulated(self) -> bool:
        return self.host is not None and any(
            gpu.name.startswith("SIMULATED") for gpu in self.host.gpus
        )

    def find(self, run: str) -> RunSummary | None:
        return next((r for r in self.runs if r.run == run), None)

    def attempts(self, run: RunSummary) -> int:
        """The highest attempt among the runs of the same profile on the same model."""
        return max(
            (r.attempt for r in self.runs if (r.profile, r.model) == (run.profile, run.model)),
            default=run.attempt,
        )

    @property
    def past(self) -> Past | None:
        """The stages of the run that shows what to expect of the current one."""
        before = comparable(self, self.run) if self.run else None
        detail = self.details.get(before.run) if before else None
        return Past(detail.summary.number, detail.stages) if detail else None

    @property
    def running(self) -> bool:
        return any(r.state == "running" for r in self.runs)

    @property
    def last_failed(self) -> RunSummary | None:
        """The current run if something went wrong in it, else the newest where it did."""
        run = self.run
        if run is not None and (_went_wrong(run) or self.standing.error or self.standing.skipped):
            return run
        return next((r for r in self.runs if _went_wrong(r)), None)


# ------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Ticked:
    now: float


@dataclass(frozen=True)
class LinkMoved:
    link: LinkState
    now: float


@dataclass(frozen=True)
class Recollected:
    """The history that this workstation kept of a host that cannot be reached."""

    kept: Kept


@dataclass(frozen=True)
class Sampled:
    sample: HostSample
    now: float


@dataclass(frozen=True)
class Recalled:
    """Samples of the current run from before this console looked, oldest first."""

    run: str
    samples: tuple[HostSample, ...]


@dataclass(frozen=True)
class RunsCame:
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True)
class RunMoved:
    summary: RunSummary
    now: float


@dataclass(frozen=True)
class Followed:
    """The dashboard turns to this run; its events come from the first one."""

    run: str


@dataclass(frozen=True)
class Happened:
    run: str
    events: tuple[Event, ...]
    caught_up: bool
    now: float


@dataclass(frozen=True)
class DetailCame:
    detail: RunDetail


@dataclass(frozen=True)
class ProfileChosen:
    """What a start runs from now on; a preflight of another profile says nothing about it."""

    profile: Profile
    path: str = ""
    run: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)


Input = Union[
    Ticked,
    LinkMoved,
    Sampled,
    Recalled,
    RunsCame,
    RunMoved,
    Followed,
    Happened,
    DetailCame,
    ProfileChosen,
    Recollected,
    checks.News,
]


def apply(state: State, news: Input) -> State:
    """``state`` after one more piece of news."""
    if isinstance(news, Ticked):
        return replace(state, now=news.now)
    if isinstance(news, Sampled):
        return _sampled(state, news)
    if isinstance(news, Happened):
        return _happened(state, news)
    if isinstance(news, LinkMoved):
        return _link_moved(state, news)
    if isinstance(news, RunMoved):
        runs = _sorted((*(r for r in state.runs if r.run != news.summary.run), news.summary))
        return replace(state, runs=runs, now=max(state.now, news.now))
    if isinstance(news, RunsCame):
        return replace(state, runs=_sorted(news.runs), runs_known=True)
    if isinstance(news, Recollected):
        runs = _sorted(news.kept.runs)
        at = news.kept.at
        return replace(state, runs=runs, runs_known=True, kept_at=at, shown_at=at)
    if isinstance(news, Followed):
        return replace(state, current=news.run, standing=Standing(), tail=())
    if isinstance(news, Recalled):
        return _recalled(state, news)
    if isinstance(news, DetailCame):
        kept = {k: v for k, v in state.details.items() if k != news.detail.summary.run}
        while len(kept) >= DETAILS:
            kept.pop(next(iter(kept)))
        kept[news.detail.summary.run] = news.detail
        return replace(state, details=kept)
    if isinstance(news, ProfileChosen):
        return replace(
            state,
            profile=news.profile,
            profile_path=news.path,
            profile_run=news.run,
            overrides=news.overrides,
            checks=state.checks if news.profile == state.profile else Checks(),
        )
    now = news.now if isinstance(news, checks.CheckBegan | checks.ActBegan) else state.now
    return replace(state, checks=checks.apply(state.checks, news), now=now)


def to_follow(state: State) -> str:
    """The run that the dashboard should show: what runs, else what is newest."""
    running = [r for r in state.runs if r.state == "running"]
    if any(r.run == state.current for r in running):
        return state.current
    if running:
        return running[0].run
    ended = [r for r in state.runs if r.state != "queued"]
    pool = ended or list(state.runs)
    return pool[0].run if pool else ""


def comparable(state: State, run: RunSummary) -> RunSummary | None:
    """The newest completed run of the same model by the same engine: what to expect of this one."""
    return next(
        (
            r
            for r in state.runs
            if r.number < run.number
            and r.state == "completed"
            and (r.model, r.engine) == (run.model, run.engine)
        ),
        None,
    )


def before(state: State, run: RunSummary) -> RunSummary | None:
    """What a run is compared with: the comparable one, else the last try of the same profile."""
    mine = (run.profile, run.model)
    tries = (r for r in state.runs if r.number < run.number and (r.profile, r.model) == mine)
    return comparable(state, run) or next(tries, None)


def _went_wrong(run: RunSummary) -> bool:
    return run.error is not None or run.state in ("failed", "incomplete", "lost")


def _sorted(runs: Iterable[RunSummary]) -> tuple[RunSummary, ...]:
    return tuple(sorted(runs, key=lambda r: (r.number, r.run), reverse=True))


def _link_moved(state: State, news: LinkMoved) -> State:
    was_live = state.live
    after = replace(state, link=news.link, now=max(state.now, news.now))
    if not isinstance(news.link, Live):
        begun = news.now if isinstance(news.link, Reconnecting) else None
        return replace(after, caught_up_at=None, catching_up=frozenset(), retry_from=begun)
    after = replace(after, retry_from=None, kept_at=None)
    fresh = not isinstance(state.link, Live) or state.link.welcome is not news.link.welcome
    if fresh and state.host is None:
        after = replace(after, clock_offset=_offset(news.link.welcome.now - news.now, 0.0))
    if not was_live and state.shown_at is not None:
        run = state.run
        open_run = run is not None and state.standing.ended is None and run.state not in ENDED
        waits = {"host", "run"} if open_run else {"host"}
        after = replace(after, catching_up=frozenset(waits))
    return after


def _offset(measured: float, known: float) -> float:
    if abs(measured) < CLOCK_SLACK:
        return 0.0
    return known if abs(measured - known) < CLOCK_SLACK / 2 else measured


def _heard(state: State, what: str, now: float) -> State:
    """Note that data came; the last missing kind after a reconnect completes catching up."""
    state = replace(state, shown_at=now, now=max(state.now, now))
    if what not in state.catching_up:
        return state
    left = state.catching_up - {what}
    return replace(state, catching_up=left, caught_up_at=None if left else now)


def _sampled(state: State, news: Sampled) -> State:
    sample = news.sample
    if not abs(sample.t - news.now) < ABSURD:
        sample = replace(sample, t=state.host_now)  # infinite, or of another age of the world
    history = dict(state.history)
    for key, value in _values(sample):
        _add(history, key, sample.t, value)
    offset = _offset(sample.t - news.now, state.clock_offset)
    return _heard(
        replace(state, host=sample, history=history, clock_offset=offset), "host", news.now
    )


def _add(history: dict[str, tuple[Point, ...]], key: str, t: float, value: float | None) -> None:
    points = history.get(key, ())
    if points and t < points[-1].t:
        points = ()  # the host's clock was set back: what is older has no place on the axis
    start = 0
    while start < len(points) and points[start].t < t - HISTORY:
        start += 1
    history[key] = (*points[start:], Point(t, value))


def _values(sample: HostSample) -> Iterator[tuple[str, float | None]]:
    """What of a sample is kept as a history, in percent."""
    for gpu in sample.gpus:
        yield f"gpu:{gpu.index}", None if gpu.utilization is None else float(gpu.utilization)
    yield "cpu", sample.cpu_percent
    memory = None
    if sample.memory_used is not None and sample.memory_total:
        memory = 100 * sample.memory_used / sample.memory_total
    yield "memory", memory


def _recalled(state: State, news: Recalled) -> State:
    """Put older points before the ones that are there; what overlaps is known already."""
    if news.run != state.current:
        return state
    made: dict[str, list[Point]] = {}
    for sample in news.samples:
        for key, value in _values(sample):
            made.setdefault(key, []).append(Point(sample.t, value))
    history = dict(state.history)
    oldest = state.host_now - HISTORY
    for key, points in made.items():
        known = history.get(key, ())
        before = known[0].t if known else state.host_now
        older = sorted((p for p in points if oldest <= p.t < before), key=lambda p: p.t)
        history[key] = (*older, *known)
    return replace(state, history=history)


def tells_more(event: Event) -> bool:
    """Whether an event says what the figures and the run's outcome do not."""
    if isinstance(event, Stage) and event.name == "done":
        return False
    return not isinstance(event, (Load, Progress, Throughput))


def kept_tail(tail: tuple[Event, ...], events: Iterable[Event]) -> tuple[Event, ...]:
    """The newest events with ``events`` behind them; of sample files only the newest few."""
    joined = [*tail, *(e for e in events if tells_more(e))]
    spare = sum(isinstance(e, Wrote) for e in joined) - WROTE
    kept: list[Event] = []
    for event in joined:
        if spare > 0 and isinstance(event, Wrote):
            spare -= 1
            continue
        kept.append(event)
    return tuple(kept[-TAIL:])


def _happened(state: State, news: Happened) -> State:
    if news.run != state.current:
        return state
    standing = state.standing
    for event in news.events:
        standing = fold(standing, event)
    state = replace(state, standing=standing, tail=kept_tail(state.tail, news.events))
    state = replace(state, now=max(state.now, news.now))
    return _heard(state, "run", news.now) if news.caught_up else state
