"""The keys that check the host: preflight, start, and what is done about a verdict.

One of them at a time: an answer is of the host as it was when nothing else was asked.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from eagle3_agent.protocol.messages import (
    Act,
    Acted,
    Checked,
    Resume,
    RunPreflight,
    Start,
    Started,
)
from eagle3_agent.protocol.values import Problem, Profile, RunDetail, Verdict

from .appbase import BaseApp
from .checks import ActBegan, ActEnded, CheckBegan, CheckEnded, Deed, Probed
from .errors import ConsoleError
from .hosttext import clean
from .messages import ActAsked, PreflightAsked, StartOver, StopAsked
from .screens.confirm import ConfirmScreen
from .screens.preflight import PreflightScreen
from .screens.start import StartScreen, start_facts
from .store import ProfileChosen
from .verdicts import Offer
from .words import deed_words, effect_words, start_words

#: Seconds that a quick preflight on a slow host may take; a deep one may take its time.
_PREFLIGHT = 300.0

#: Seconds that an action may take: TERM, a wait and KILL, or a unit's own stop.
_ACT = 600.0

_GROUP = "check"


class ChecksApp(BaseApp):
    """What ``s``, ``p`` and the keys of the preflight screen ask of the host."""

    _blocked: Resume | None = None
    """The resume that checks blocked: what a start over them means then."""

    # ------------------------------------------------------------------ start

    def action_start(self) -> None:
        """Show what would run, and ask."""
        profile = self.state.profile
        if profile is None:
            self._no_profile()
            return
        if not self._may("start a run") or self._busy():
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._start(())

        title = f"Start this on {self.state.target}?"
        facts = start_facts(self.state, profile)
        self.push_screen(StartScreen(title, facts, "Check and start"), answered)

    def on_start_over(self, message: StartOver) -> None:
        if self._blocked is not None:
            self._send(replace(self._blocked, force=message.force))
        else:
            self._start(message.force)

    def _start(self, force: tuple[str, ...]) -> None:
        if self.state.profile is None:
            self._no_profile()
        else:
            self._send(Start(0, self.state.profile, force))

    def _resume(self, detail: RunDetail) -> None:
        """A new attempt of an ended run, under its own profile."""
        run = detail.summary.run
        if detail.resolved != self.state.profile:
            self.apply(ProfileChosen(detail.resolved, run=run))
        self._send(Resume(0, run))

    def _send(self, request: Start | Resume) -> None:
        profile = self.state.profile
        if profile is None or not self._may("start a run") or self._busy():
            return
        self._blocked = None
        self.notify(start_words(profile), title="Checking, then starting", markup=False)
        self._check(self._started(request), CheckBegan(self._now(), starting=True))

    async def _started(self, request: Start | Resume) -> None:
        try:
            reply = await self._link.ask(request, _PREFLIGHT)
        except ConsoleError as error:
            self.apply(CheckEnded(error.report))
            if error.report is not None and error.report.blocking:
                self._blocked = request if isinstance(request, Resume) else None
                self._open(PreflightScreen(self.state))
            elif error.problem.code == "busy" and not request.queue:
                self._offer_queue(request, error.problem)
            else:
                self._tell(error.problem)
            return
        if isinstance(reply, Started):
            self.apply(CheckEnded(reply.report))
            word = "waits in the queue" if reply.queued else "started"
            self.notify(f"Run {clean(reply.run)} {word}", markup=False)
            self._to_dashboard()

    def _offer_queue(self, request: Start | Resume, problem: Problem) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._send(replace(request, queue=True))

        said = [problem.happened, "", "It can wait, and starts by itself when its turn comes."]
        self.push_screen(ConfirmScreen(problem.title, said, "Wait in the queue"), answered)

    # ------------------------------------------------------------------ preflight

    def action_preflight(self) -> None:
        """Show the preflight; ask for one unless its answer is there already, or on its way."""
        self._ask_preflight(deep=False)
        self._open(PreflightScreen(self.state))

    def on_preflight_asked(self, message: PreflightAsked) -> None:
        if not message.deep or not self.state.running:
            self._ask_preflight(deep=message.deep)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._ask_preflight(deep=True)

        said = [
            "A run goes on. The deep checks compute on the GPUs, move data between them and write",
            "gigabytes: they would slow it down, and it would spoil what they measure.",
        ]
        self.push_screen(ConfirmScreen("Check deeply beside a run?", said, "Check"), answered)

    def _ask_preflight(self, *, deep: bool) -> None:
        profile = self.state.profile
        if profile is None or self.state.checks.since is not None:
            return
        if not self.state.live:
            self._not_now("check it")
            return
        began = CheckBegan(self._now(), deep=deep)
        self._check(self._checked(RunPreflight(0, profile, deep)), began)

    async def _checked(self, request: RunPreflight) -> None:
        limit = None if request.deep else _PREFLIGHT
        try:
            reply = await self._link.ask(request, limit, lambda p: self.apply(Probed(p)))
        except ConsoleError as error:
            self.apply(CheckEnded(error.report))
            self._tell(error.problem)
            return
        self.apply(CheckEnded(reply.report if isinstance(reply, Checked) else None))

    def on_stop_asked(self, _: StopAsked) -> None:
        """End a preflight half way, here and on the host."""
        checks = self.state.checks
        if checks.since is None or checks.starting or checks.acting:
            self.notify("No check is going on that could be stopped.")
            return
        self.workers.cancel_group(self, _GROUP)
        self.apply(CheckEnded())
        self.notify("The check was given up; the host ends what it had begun.")

    # ------------------------------------------------------------------ actions

    def on_act_asked(self, message: ActAsked) -> None:
        """Show exactly what an action would do, and ask; No is the default."""
        offer, profile = message.offer, self.state.profile
        if profile is None or not self._may("change the host") or self._busy():
            return

        def answered(yes: bool | None) -> None:
            if yes and not self._busy():
                action = offer.action
                self.apply(ActBegan(self._now(), action.title))
                self.run_worker(self._acted(profile, offer), group=_GROUP)

        said = [f"for {offer.verdict.title} ({offer.verdict.check})", "", *effect_words(offer)]
        self.push_screen(ConfirmScreen(f"{offer.action.title}?", said, "Do it"), answered)

    async def _acted(self, profile: Profile, offer: Offer) -> None:
        deed, verdict = await self._deed(profile, offer)
        self.apply(ActEnded(deed, verdict))
        title, text, severity = deed_words(deed)
        self.notify(text, title=title, severity=severity, timeout=8, markup=False)
        # it may bear on other checks too; of a deep report only its own check is made again
        if verdict is not None and not self.state.checks.deep and self.state.live:
            began = CheckBegan(self._now(), after_deed=True)
            self._check(self._checked(RunPreflight(0, profile)), began)

    async def _deed(self, profile: Profile, offer: Offer) -> tuple[Deed, Verdict | None]:
        """Have it done; a refusal or a lost link is a deed that says why."""
        check, action = offer.verdict.check, offer.action
        deed = Deed(check, offer.verdict.title, action)
        try:
            reply = await self._link.ask(Act(0, profile, check, action), _ACT)
        except ConsoleError as error:
            return replace(deed, problem=error.problem), None
        if not isinstance(reply, Acted):
            words = f"The agent answered {type(reply).__name__}."
            return replace(deed, problem=Problem("Not known", words, "Check again.")), None
        after = reply.verdict
        return replace(deed, done=reply.done, helped=reply.helped, now=after.saw), after

    # ------------------------------------------------------------------ one at a time

    def _check(self, work: Awaitable[None], began: CheckBegan) -> None:
        self.apply(began)
        self.run_worker(work, group=_GROUP)

    def _busy(self) -> bool:
        """Whether the host is being asked already; says so."""
        if self.state.checks.since is None:
            return False
        what = "An action is under way." if self.state.checks.acting else ""
        self.notify(what or "A check of this host is going on already.")
        return True

    def _no_profile(self) -> None:
        self.notify(
            "Leave with q and name one: eagle3-console connect TARGET -p PROFILE",
            title="No profile is loaded",
            severity="warning",
            markup=False,
        )
