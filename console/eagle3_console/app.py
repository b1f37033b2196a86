"""The TUI's owner: holds the link and the state, turns keys into requests.

Every change on screen comes from news that the host sent: a key sends a
message, the answer is applied to the state, the screens draw the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.command import Provider

from eagle3_agent.protocol import decode_event
from eagle3_agent.protocol.messages import (
    Abort,
    Detail,
    Done,
    GetRun,
    RunChanged,
    Telemetry,
)
from eagle3_agent.protocol.values import RunSummary

from . import keys, store
from .appprofiles import ProfilesApp
from .errors import ConsoleError
from .hosttext import clean
from .linkstate import LinkState, Live, Offline
from .messages import RunOpened
from .palette import Commands
from .recall import recall
from .screens.base import switched_off
from .screens.confirm import ConfirmScreen
from .screens.diff import DiffScreen
from .screens.help import HelpScreen, facts
from .screens.history import HistoryScreen
from .screens.log import LogScreen
from .screens.pages import ErrorsScreen, Feed, RunScreen
from .toasts import TOASTS
from .words import abort_words, ended_words

#: Seconds without news after which the clock and the durations move by themselves.
_TICK = 0.9


class ConsoleApp(ProfilesApp):
    """The console's one app: news in, keys out."""

    TITLE = "eagle3-console"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Commands}
    CSS = (
        TOASTS
        + """
    * { scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background; scrollbar-color: $panel-lighten-2;
        scrollbar-corner-color: $background; }
    .-theme-eagle-contrast #body.-stale Panel { text-opacity: 100%; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "start", "start", tooltip="check the host, then start the profile"),
        Binding("a", "abort", "abort", tooltip="end a run and all its processes; asks first"),
        Binding("p", "preflight", "preflight", tooltip="check whether the host is ready"),
        Binding("e", "errors", "errors", tooltip="what happened first in the failed run"),
        Binding("h", "history", "history", tooltip="every run on this host"),
        Binding("l", "log", "log", tooltip="the run's whole output"),
        Binding(
            "d", "diff", "diff", tooltip="what changed since the run before, or the marked one"
        ),
        Binding("f", "profile", "profile", tooltip="choose a profile, read it, change it"),
        Binding("r", "rerun", "again", tooltip="a run's own profile in the editor, to start it"),
        Binding("R", "resume", "resume", tooltip="go on with a run that ended before it was done"),
        Binding(
            "ctrl+r", "reconnect", "reconnect", show=False, tooltip="try an offline host again"
        ),
        Binding("ctrl+t", "next_theme", "theme", show=False, tooltip="dark, light, high contrast"),
        Binding("question_mark", "help", "help", tooltip="all keys"),
        Binding("q", "quit", "quit", tooltip="leave; runs on the host go on"),
    ]

    def on_mount(self) -> None:
        self._link.on_state = self._on_link_state
        self._link.on_push = self._on_push
        self._on_link_state(self._link.state)
        self.set_interval(1.0, self._tick)
        if self._link.kept is not None:
            self._recollect()
        else:
            self.run_worker(self._begin(), group="begin")

    # ------------------------------------------------------------------ news -> state

    def _tick(self) -> None:
        now = self._now()
        if abs(now - self.state.now) >= _TICK:  # else news of this second moved the clock already
            self.apply(store.Ticked(now))

    def _on_link_state(self, link: LinkState) -> None:
        self.apply(store.LinkMoved(link, self._now()))

    def _on_push(self, news: RunChanged | Telemetry) -> None:
        if isinstance(news, Telemetry):
            self.apply(store.Sampled(news.sample, self._now()))
            return
        before = self.state.find(news.summary.run)
        self.apply(store.RunMoved(news.summary, self._now()))
        was_open = before is not None and before.state not in store.ENDED
        if was_open and news.summary.state in store.ENDED:
            self._tell_end(news.summary)
        self._follow()

    def _tell_end(self, run: RunSummary) -> None:
        """Once a run, however often the host says it again after the link came back."""
        if run.run in self._told:
            return
        self._told.add(run.run)
        title, text, severity = ended_words(run)
        self.notify(text, title=title, severity=severity, timeout=10, markup=False)
        self.outward.ended(title, text)
        self.run_worker(self._detail(run.run), group="detail")

    async def _begin(self) -> None:
        try:
            if not isinstance(self._link.state, Live):
                await self._link.connect()
            self._on_link_state(self._link.state)
            runs = await self._link.watch(runs=True, host_interval=1.0)
        except ConsoleError as error:
            self._on_link_state(self._link.state)
            if self.state.live:
                self._tell(error.problem)
            self._recollect()
            return
        self._tell_warnings()
        self.apply(store.Followed(""))
        self.apply(store.RunsCame(runs))
        self._follow()

    def _recollect(self) -> None:
        """Show what is kept of a host that cannot be reached, unless newer things are shown."""
        kept = self._link.kept
        if kept is not None and (self.state.kept_at is not None or not self.state.runs_known):
            self.apply(store.Recollected(kept))
            self._follow()

    def _tell_warnings(self) -> None:
        said = [clean(words) for words in self._link.warnings]
        if self._link.agent_outdated:
            said.append(
                "The agent there is not the one that this console ships. It serves nevertheless; "
                "`eagle3-console agent upgrade` replaces it between runs."
            )
        for words in said:
            self.notify(words, title="To know", severity="warning", timeout=8, markup=False)

    def _follow(self) -> None:
        """Turn the dashboard to what runs, and read its events from the first one."""
        run = store.to_follow(self.state)
        if not run or run == self.state.current:
            return
        self.apply(store.Followed(run))
        self.run_worker(self._read_events(run), exclusive=True, group="follow")
        self.run_worker(self._recall(run), exclusive=True, group="recall")
        self.run_worker(self._detail(run), group="detail")
        before = store.comparable(self.state, self.state.run) if self.state.run else None
        if before is not None and before.run not in self.state.details:
            self.run_worker(self._detail(before.run), group="detail")

    async def _read_events(self, run: str) -> None:
        rest = b""
        try:
            async for piece in self._link.stream(run, "events"):
                *lines, rest = (rest + piece.data).split(b"\n")
                events = tuple(e for e in map(decode_event, lines) if e is not None)
                self.apply(store.Happened(run, events, piece.caught_up, self._now()))
        except ConsoleError as error:
            if self.state.live:  # a lost link speaks for itself, in the banner
                self._tell(error.problem)

    async def _recall(self, run: str) -> None:
        """The GPUs' history from before this console looked; without it the plot starts now."""
        summary = self.state.find(run)
        since = self.state.host_now - store.HISTORY
        if summary is None or (summary.ended is not None and summary.ended < since):
            return
        with contextlib.suppress(ConsoleError):
            samples = await recall(self._link, run, since)
            self.apply(store.Recalled(run, samples))

    async def _detail(self, run: str) -> None:
        try:
            reply = await self._link.ask(GetRun(0, run))
        except ConsoleError:
            return  # the page says that it is still reading; the link's state says why
        if isinstance(reply, Detail):
            self.apply(store.DetailCame(reply.detail))

    # ------------------------------------------------------------------ keys -> requests

    def action_reconnect(self) -> None:
        """Once more, after the link was given up; while it is retried there is nothing to do."""
        if isinstance(self.state.link, Offline):
            self.run_worker(self._begin(), group="begin", exclusive=True)

    def action_abort(self) -> None:
        run = self._pointed()
        if not self._may("abort a run"):
            return
        lost = run is not None and run.state == "lost"  # what it left can still be ended
        if run is None or (run.state in store.ENDED and not lost):
            self.notify("Nothing runs that could be aborted.")
            return

        def answered(yes: bool | None) -> None:
            now = self.state.find(run.run) or run
            if yes and now.state in store.ENDED and not lost:
                words = f"Run {now.number} ended by itself meanwhile: {now.state}."
                self.notify(words, markup=False)
            elif yes:
                self.run_worker(self._abort(run), group="abort")

        said = abort_words(self.state, run)
        title = f"End what run {run.number} left?" if lost else f"Abort run {run.number}?"
        answer = "End it" if lost else "Abort it"
        self.push_screen(ConfirmScreen(title, said, answer), answered)

    async def _abort(self, run: RunSummary) -> None:
        self.notify(f"Ending run {run.number}: TERM first, KILL within 10 s", markup=False)
        try:
            reply = await self._link.ask(Abort(0, run.run))
        except ConsoleError as error:
            self._tell(error.problem)
            return
        if isinstance(reply, Done) and reply.text:
            self.notify(clean(reply.text), markup=False)

    # ------------------------------------------------------------------ keys -> screens

    def action_errors(self) -> None:
        pointed, failed = self._pointed(), self.state.last_failed
        if isinstance(self.screen, RunScreen | HistoryScreen) and pointed and pointed.error:
            failed = pointed
        run = failed.run if failed else ""
        self._open(ErrorsScreen(self.state, run, self._feed(run, "events")))
        if run:
            self.run_worker(self._detail(run), group="detail")

    def action_history(self) -> None:
        self._open(HistoryScreen(self.state))

    def action_diff(self) -> None:
        screen, after = self.screen, self._pointed()
        marked = screen.marked if isinstance(screen, HistoryScreen) else ""
        before = self.state.find(marked) if marked else after and store.before(self.state, after)
        if isinstance(screen, DiffScreen) or after is None or before is None or before is after:
            self.notify("No other run to compare with: mark one in the history with space.")
            return
        self._open(DiffScreen(self.state, before.run, after.run))
        for run in (before.run, after.run):
            self.run_worker(self._detail(run), group="detail")

    def action_log(self) -> None:
        run = self._pointed()
        if run is None:
            self.notify("No run on this host yet, so there is no log.")
            return
        screen = self.screen
        at = screen.cause_line() if isinstance(screen, ErrorsScreen) else None
        feed = self._feed(run.run, "output")
        self._open(
            LogScreen(
                self.state, run.run, feed, at_error=isinstance(screen, ErrorsScreen), at_line=at
            )
        )

    def on_run_opened(self, message: RunOpened) -> None:
        self._open(RunScreen(self.state, message.run, self._feed(message.run, "events")))
        self.run_worker(self._detail(message.run), group="detail")

    def _feed(self, run: str, stream: Any) -> Feed:
        return lambda: self._link.stream(run, stream)

    def action_help(self) -> None:
        found = keys.of(self.screen.active_bindings.values())
        self.push_screen(HelpScreen(found, switched_off(self.state), facts(self.theme)))

    async def action_quit(self) -> None:
        if not self._leaves_changes():
            self.exit(0)

    async def on_unmount(self) -> None:
        self._link.on_state = self._link.on_push = None
        self.outward.give_back()
