"""The keys that decide what the next run is: a profile, an earlier run's, or one resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.messages import Detail, GetRun
from eagle3_agent.protocol.values import RunDetail, RunSummary

from . import profile as profiles
from . import profile_edit, profile_save
from .appchecks import ChecksApp
from .errors import ConsoleError
from .messages import DraftChanged, EditAsked, ProfileTaken
from .profile_edit import Draft
from .screens.base import ConsoleScreen
from .screens.confirm import ConfirmScreen
from .screens.profile_editor import ProfileEditor
from .screens.profiles import ProfileScreen
from .screens.start import StartScreen, resume_facts
from .store import ENDED, DetailCame, ProfileChosen


class ProfilesApp(ChecksApp):
    """What ``f``, ``r`` and ``R`` do, and what a profile's editor asks for."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unsaved: dict[tuple[Path, str], Draft] = {}
        """What was typed in the editor: it comes back, however it was left."""

    def _pointed(self) -> RunSummary | None:
        """The run that the screen in front is about."""
        screen = self.screen
        run = screen.target_run() if isinstance(screen, ConsoleScreen) else self.state.current
        return self.state.find(run or self.state.current)

    # ------------------------------------------------------------------ choosing

    def action_profile(self) -> None:
        self._open(ProfileScreen(self.state))

    def on_profile_taken(self, message: ProfileTaken) -> None:
        if self._busy():
            return
        self._blocked = None
        self.apply(
            ProfileChosen(message.profile, message.path, message.run, dict(message.overrides))
        )
        if message.start:
            self.action_start()

    # ------------------------------------------------------------------ editing

    def on_draft_changed(self, message: DraftChanged) -> None:
        draft = message.draft
        self._unsaved.pop((draft.path, draft.run), None)
        if message.unsaved:
            self._unsaved[draft.path, draft.run] = draft

    def on_edit_asked(self, message: EditAsked) -> None:
        state = self.state
        if message.path is None:
            if state.profile is None:
                self._no_profile()
            else:
                self._edit(profile_edit.of_run(state.profile, state.profile_run))
            return
        try:
            draft = profile_save.opened(message.path)
        except ConsoleError as error:
            self._tell(error.problem)
            return
        loaded = state.profile_path == str(message.path)
        self._edit(profile_edit.with_changes(draft, state.overrides if loaded else {}))

    def _edit(self, draft: Draft) -> None:
        kept = self._unsaved.get((draft.path, draft.run))
        shown = profile_edit.with_changes(draft, kept.changes) if kept is not None else draft
        self._open(ProfileEditor(self.state, shown, draft.changes))

    def _leaves_changes(self) -> bool:
        """Whether something typed would be lost by leaving; then asks."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.exit(0)

        names = [f"● {draft.path}" for draft in self._unsaved.values()]
        if names:
            said = [*names, "", "f and e lead to the editor, where w saves."]
            self.push_screen(ConfirmScreen("Leave unsaved changes?", said, "Leave"), answered)
        return bool(names)

    # ------------------------------------------------------------------ from an earlier run

    def action_rerun(self) -> None:
        """The run's own profile in the editor, with what differs from today's."""
        run = self._pointed()
        if run is None:
            self.notify("No run on this host yet, so there is none to repeat.")
            return
        self._with_detail(run, self._again)

    def _again(self, detail: RunDetail) -> None:
        resolved, run = detail.resolved, detail.summary.run
        file = self._file_of(resolved.name)
        draft = profile_edit.of_run(resolved, run, file=file, against=self.state.profile)
        self._edit(draft)

    def _file_of(self, name: str) -> Draft | None:
        """The file of this name, the loaded one first; None where there is none to go by."""
        path = Path(self.state.profile_path) if self.state.profile_path else None
        if path is None or path.stem != name or not path.is_file():
            path = dict(profiles.available()).get(name)
        try:
            return profile_save.opened(path) if path is not None else None
        except ConsoleError:
            return None

    def action_resume(self) -> None:
        """A new attempt of an ended run, once it is shown what stays."""
        run = self._pointed()
        if run is None or run.state not in ENDED or run.state == "completed":
            state = "is complete" if run and run.state == "completed" else "has not ended"
            words = f"Run {run.number} {state}." if run else "No run on this host yet."
            self.notify(f"{words} There is nothing to resume.", markup=False)
        elif self._may("resume a run") and not self._busy():
            self._with_detail(run, self._ask_resume)

    def _ask_resume(self, detail: RunDetail) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._resume(detail)

        facts = resume_facts(self.state, detail)
        title = f"Resume run {detail.summary.number} on {self.state.target}?"
        self.push_screen(StartScreen(title, facts, "Check and resume"), answered)

    def _with_detail(self, run: RunSummary, then: Callable[[RunDetail], None]) -> None:
        """Call ``then`` with all that is known of a run; asks the host where it must."""
        known = self.state.details.get(run.run)
        if known is not None and known.summary.state == run.state:
            then(known)
        elif not self.state.live:
            self._not_now("read that run")
        else:
            self.run_worker(self._fetch(run, then), group="detail")

    async def _fetch(self, run: RunSummary, then: Callable[[RunDetail], None]) -> None:
        try:
            reply = await self._link.ask(GetRun(0, run.run))
        except ConsoleError as error:
            self._tell(error.problem)
            return
        if isinstance(reply, Detail):
            self.apply(DetailCame(reply.detail))
            then(reply.detail)
