"""A profile, setting by setting: changed here, judged as it is typed, saved or only used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from eagle3_console import profile_edit, profile_save
from eagle3_console.errors import ConsoleError
from eagle3_console.hosttext import clean
from eagle3_console.messages import DraftChanged, ProfileTaken
from eagle3_console.profile import Finding
from eagle3_console.profile_edit import Draft, Row
from eagle3_console.profile_settings import Fault
from eagle3_console.store import State
from eagle3_console.widgets.settings import Doc, EditHead, Field, Filter, SettingRow, masked

from .base import ConsoleScreen
from .confirm import ConfirmScreen
from .naming import NameScreen

#: Rows of a screen from which the foot is higher.
_TALL = 30


class ProfileEditor(ConsoleScreen):
    """``safe`` are the changes that need no saving, since the session knows them already."""

    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[str, ...]] = (
        "edit", "undo", "leave_out", "filter", "save", "use", "start_it", "cancel", "back", "help",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "edit", "edit", tooltip="change the value; a choice goes on to the next"),
        Binding("right,l,space", "step(1)", "next choice", show=False),
        Binding("left,h", "step(-1)", "choice before", show=False),
        Binding("u", "undo", "undo", tooltip="the value as it was"),
        Binding("d,delete", "leave_out", "drop", tooltip="leave it out: the default holds"),
        Binding("slash", "filter", "filter", tooltip="only what holds these words"),
        Binding("w,ctrl+s", "save", "save", tooltip="write the file and load the profile"),
        Binding("t", "use", "use", tooltip="for this session alone; the file stays as it is"),
        Binding("s", "start_it", "start", tooltip="use it, and show what a start would run"),
        Binding("down,j", "move(1)", "next", show=False),
        Binding("up,k", "move(-1)", "previous", show=False),
        Binding("pagedown,ctrl+f", "move(10)", "page down", show=False),
        Binding("pageup,ctrl+b", "move(-10)", "page up", show=False),
        Binding("g,home", "move(-1000)", "first", show=False),
        Binding("G,end", "move(1000)", "last", show=False),
        Binding("n", "wrong", "next problem", show=False),
    ]
    DEFAULT_CSS = """
    ProfileEditor #settings { height: 1fr; scrollbar-size-vertical: 1; }
    ProfileEditor .section { height: 1; padding: 0 1; color: $accent; text-style: bold; }
    ProfileEditor #filter { display: none; height: 1; padding: 0 1; background: $panel; }
    ProfileEditor #filter.-textual-compact { padding: 0 1 !important; }
    """

    def __init__(self, state: State, draft: Draft, safe: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.draft = draft
        self.safe = dict(safe)
        self.rows = profile_edit.rows(draft, local=self._local)
        self.at = self.rows[0].key
        self.words = ""

    @property
    def _local(self) -> bool:
        return self.state.target == "local"

    @property
    def unsaved(self) -> bool:
        return dict(self.draft.changes) != self.safe

    def body(self) -> ComposeResult:
        yield EditHead(self.draft)
        with VerticalScroll(id="settings", can_focus=False):
            yield from self._settings()
        yield Doc()
        yield Filter(placeholder="name, value or what it is for", id="filter", compact=True)

    def _settings(self) -> ComposeResult:
        section = ""
        for row in self.rows:
            if row.section != section:
                section = row.section
                yield Static(Content(clean(section)), classes="section", id=None, name=section)
            yield SettingRow(row)

    # ------------------------------------------------------------------ drawing

    def on_resize(self) -> None:
        self.query_one(Doc).set_class(self.size.height >= _TALL, "-tall")
        super().on_resize()

    def show(self, state: State) -> None:
        found = self._found()
        if self.at not in [row.key for row in found] and found:
            self.at = found[0].key
        by_key = {row.key: row for row in self.rows}
        keys = {row.key for row in found}
        for widget in self.query(SettingRow):
            row = by_key.get(widget.row.key)
            edited = any(field.row.key == widget.row.key for field in self.query(Field))
            widget.display = row is not None and row.key in keys and not edited
            if row is not None:
                widget.show(row, row.key == self.at)
        sections = {row.section for row in found}
        for title in self.query(".section"):
            title.display = title.name in sections
        head, doc = self.query_one(EditHead), self.query_one(Doc)
        head.draft, head.rows = self.draft, self.rows
        doc.row = by_key.get(self.at) if found else None
        super().show(state)

    def _found(self) -> list[Row]:
        words = self.words.lower().split()
        return [row for row in self.rows if all(word in _searched(row) for word in words)]

    def row(self) -> Row | None:
        return next((row for row in self._found() if row.key == self.at), None)

    def _take(self, draft: Draft) -> None:
        """Go on with another draft; the app keeps it, however this screen is left."""
        known = {row.key for row in self.rows}
        self.draft = draft
        self.rows = profile_edit.rows(draft, local=self._local)
        self.post_message(DraftChanged(draft, unsaved=self.unsaved))
        if {row.key for row in self.rows} - known:
            self.run_worker(self._fill(), exclusive=True, group="fill")
        self.show(self.state)

    async def _fill(self) -> None:
        """The file has other keys than before."""
        holder = self.query_one("#settings")
        await holder.remove_children()
        await holder.mount_all(self._settings())
        self.show(self.state)

    # ------------------------------------------------------------------ moving

    def action_move(self, step: int) -> None:
        keys = [row.key for row in self._found()]
        if keys and not self.query(Field):
            at = keys.index(self.at) if self.at in keys else 0
            self._point(keys[max(0, min(at + step, len(keys) - 1))])

    def action_wrong(self) -> None:
        """The next setting with a problem, around the end."""
        keys = [row.key for row in self._found()]
        at = keys.index(self.at) + 1 if self.at in keys else 0
        wrong = {row.key for row in self.rows if row.findings}
        found = [key for key in keys[at:] + keys[:at] if key in wrong]
        if found and not self.query(Field):
            self._point(found[0])

    def _point(self, key: str) -> None:
        self.at = key
        self.show(self.state)
        for widget in self.query(SettingRow):
            if widget.row.key == key:
                first = self.rows and key == self.rows[0].key
                holder = self.query_one("#settings", VerticalScroll)
                if first:
                    holder.scroll_home(animate=False)
                else:
                    holder.scroll_to_widget(widget, animate=False)

    async def on_setting_row_clicked(self, message: SettingRow.Clicked) -> None:
        if self.query(Field):
            return
        if self.at == message.key:
            await self.action_edit()
        else:
            self._point(message.key)

    # ------------------------------------------------------------------ changing

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """With a field open only the field's keys work, and the row of keys shows them."""
        return action == "back" or action not in self.KEYS or not self.query(Field)

    async def action_edit(self) -> None:
        """Open the field; what is typed from now on belongs to it, however slow the screen is."""
        row = self.row()
        if row is None or self.query(Field):
            return
        if row.setting is None:
            self.notify("It is no setting: d removes it.", markup=False)
        elif row.setting.kind in ("choice", "boolean"):
            self.action_step(1)
        else:
            for widget in self.query(SettingRow):
                if widget.row.key == row.key:
                    field = Field(row, self._judge)
                    await self.mount(field, after=widget)
                    widget.display = False
                    self.set_focus(field.query_one(Input))
                    self.refresh_bindings()
                    break

    def _judge(self, row: Row, words: str) -> tuple[list[Fault], tuple[Finding, ...]]:
        """What is wrong with the words alone, and with the profile that they would make."""
        if row.setting is None:
            return [], ()
        value, faults = profile_edit.typed(row.setting, words)
        if faults:
            return faults, ()
        after = profile_edit.put(self.draft, row.key, value)
        return [], tuple(
            f for f in profile_edit.findings(after, local=self._local) if f.key == row.key
        )

    async def on_field_done(self, message: Field.Done) -> None:
        row, words = message.row, message.words
        value, faults = None, list[Fault]()
        if words is not None and row.setting is not None:
            value, faults = profile_edit.typed(row.setting, words)
            if faults and words != profile_edit.shown(row.value):
                return  # the field says what is wrong
        await self.query(Field).remove()
        self.set_focus(None)
        self.refresh_bindings()
        if words is None or faults:
            self.show(self.state)
        else:
            self._take(profile_edit.put(self.draft, row.key, value))

    def action_step(self, step: int) -> None:
        row = self.row()
        if row is None or row.setting is None or row.setting.kind not in ("choice", "boolean"):
            return
        now = row.value if row.value is not None else profile_edit.defaults().get(row.key)
        value = profile_edit.stepped(row.setting, now, step)
        self._take(profile_edit.put(self.draft, row.key, value))

    def action_undo(self) -> None:
        row = self.row()
        if row is not None:
            self._take(profile_edit.revert(self.draft, row.key))

    def action_leave_out(self) -> None:
        row = self.row()
        if row is not None and row.value is not None:
            self._take(profile_edit.put(self.draft, row.key, None))

    async def on_key(self, event: events.Key) -> None:
        """What is typed while a field opens belongs into it: no letter of it is a command."""
        fields = self.query(Field)
        if fields and event.is_printable and event.character:
            fields.first().query_one(Input).insert_text_at_cursor(event.character)
        elif event.key == "enter" and self.focused is None:
            await self.action_edit()  # here, so that the next key finds the field open
        else:
            return
        event.stop()
        event.prevent_default()

    # ------------------------------------------------------------------ filter and leaving

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True  # at once, so that it can have the focus before the next key
        self.set_focus(box)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.words = event.value
        found = self._found()
        named = [row for row in found if event.value.strip().lower() in row.key]
        if found and event.value.strip():
            self.at = (named or found)[0].key
        self.show(self.state)

    def action_back(self) -> None:
        box = self.query_one("#filter", Input)
        if box.display:
            box.value = ""
            box.display = False
            self.set_focus(None)
        elif self.unsaved:
            self._ask_before_leaving()
        else:
            super().action_back()

    def _ask_before_leaving(self) -> None:
        changes = [row for row in self.rows if row.changed]
        said = [f"● {row.key}: {masked(row, row.value) or 'left out'}" for row in changes[:12]]
        said += ["", "w saves the file; t uses them in this session without saving."]

        def answered(yes: bool | None) -> None:
            if yes:
                self._take(replace(self.draft, changes=self.safe))
                super(ProfileEditor, self).action_back()

        many = f"{len(changes)} changes" if len(changes) != 1 else "the change"
        self.app.push_screen(ConfirmScreen(f"Throw away {many}?", said, "Throw away"), answered)

    # ------------------------------------------------------------------ using and saving

    def action_use(self) -> None:
        if self._use(start=False):
            self.notify("Used in this session; the file stays as it is.", markup=False)
            super().action_back()

    def action_start_it(self) -> None:
        self._use(start=True)

    def _use(self, *, start: bool) -> bool:
        """Make it the session's profile; False, with the words why, when it cannot be used."""
        if not self._fit_for_use():
            return False
        draft = self.draft
        self.safe = dict(draft.changes)
        path = str(draft.path) if draft.on_disk else ""
        profile = profile_edit.build(draft, local=self._local)
        self.post_message(DraftChanged(draft, unsaved=False))
        self.post_message(ProfileTaken(profile, path, draft.run, draft.changes, start=start))
        return True

    def _fit_for_use(self) -> bool:
        found = profile_edit.findings(self.draft, local=self._local)
        if found:
            words = f"{clean(found[0].key)}: {clean(found[0].what)}; {clean(found[0].todo)}"
            many = f"{len(found)} problems" if len(found) > 1 else "A problem"
            title = f"{many} first; n goes to each"
            self.notify(words, title=title, severity="warning", markup=False)
        return not found

    def action_save(self) -> None:
        draft = self.draft
        if not draft.on_disk or profile_save.is_shipped(draft.path):
            why = "It came with the console" if draft.on_disk else "It has no file yet"
            ask = NameScreen(f"{why}: save it as your own, under the name", draft.name)
            self.app.push_screen(ask, self._save_as)
            return
        try:
            theirs = profile_save.held_now(draft)
        except ConsoleError as error:
            self.complain(error.problem)
            return
        if theirs is not None:
            self._ask_to_merge(theirs)
        elif draft.changes:
            self._saved_by(lambda: profile_save.save(draft))
        else:
            self.notify("Nothing is changed, so there is nothing to save.")

    def _ask_to_merge(self, theirs: str) -> None:
        def answered(yes: bool | None) -> None:
            if not yes:
                return
            try:
                self._take(profile_edit.onto(self.draft, theirs))
            except ConsoleError as error:
                self.complain(error.problem)

        said = [
            f"{self.draft.path} was changed by somebody else since it was read here.",
            "Nothing is written yet. Read it again and put your changes on top?",
            "You see the result, and w saves it.",
        ]
        self.app.push_screen(ConfirmScreen("The file has changed", said, "Read again"), answered)

    def _save_as(self, name: str | None) -> None:
        if name is None:
            return
        self._saved_by(lambda: profile_save.save_new(self.draft, profile_save.own_path(name)))

    def _saved_by(self, save: Any) -> None:
        try:
            saved: Draft = save()
        except ConsoleError as error:
            self.complain(error.problem)
            return
        self.safe = {}
        self._take(saved)
        found = profile_edit.findings(saved, local=self._local)
        if found:
            words = f"Saved, with {len(found)} problems: it is not loaded."
            self.notify(words, severity="warning", markup=False)
            return
        profile = profile_edit.build(saved, local=self._local)
        self.post_message(ProfileTaken(profile, str(saved.path)))
        self.notify(f"Saved and loaded: {clean(str(saved.path))}", markup=False)


def _searched(row: Row) -> str:
    doc = row.setting.doc if row.setting is not None else ""
    wrong = " ".join(f.what for f in row.findings)
    return f"{row.key} {masked(row, row.value)} {doc} {wrong}".lower()
