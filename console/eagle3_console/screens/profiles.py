"""Which profile shall the next run take?  Every one that can be named, with what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from eagle3_agent.protocol.values import Profile
from eagle3_console import profile_edit, profile_save, scrub
from eagle3_console.errors import ConsoleError
from eagle3_console.hosttext import clean, crop_left, fit
from eagle3_console.messages import EditAsked, ProfileTaken
from eagle3_console.profile import Finding, ProfileError
from eagle3_console.profile_edit import Draft
from eagle3_console.store import State
from eagle3_console.widgets import ink
from eagle3_console.widgets.pages import profile_rows
from eagle3_console.widgets.panel import Panel
from eagle3_console.widgets.run import NO_PROFILE

from .base import ConsoleScreen, Scroll

#: Cells of a profile's name, its engine, and the rows of the list on a low screen.
_NAME = 22
_ENGINE = 12
_LIST = 5
_TALL = 30


@dataclass(frozen=True)
class Entry:
    """A profile that can be chosen, or a file that cannot and why."""

    name: str
    path: Path | None
    profile: Profile | None = None
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    """Why the file cannot be read at all."""
    loaded: bool = False


def entries(state: State) -> tuple[Entry, ...]:
    """The loaded profile first when it is no file that can be named, then all that can."""
    local = state.target == "local"
    found = []
    for name, path, draft in profile_save.listed():
        loaded = state.profile is not None and _same(path, state.profile_path)
        if loaded:
            found.append(Entry(name, path, state.profile, loaded=True))
        elif isinstance(draft, Draft):
            found.append(_entry(name, draft, local))
        elif isinstance(draft, ProfileError):
            found.append(Entry(name, path, findings=draft.findings))
        else:
            found.append(Entry(name, path, problem=draft.problem.happened))
    if state.profile is not None and not any(entry.loaded for entry in found):
        file = Path(state.profile_path) if state.profile_path else None
        found.insert(0, Entry(state.profile.name, file, state.profile, loaded=True))
    return tuple(found)


def _same(path: Path, loaded: str) -> bool:
    return bool(loaded) and path.resolve() == Path(loaded).resolve()


def _entry(name: str, draft: Draft, local: bool) -> Entry:
    try:
        return Entry(name, draft.path, profile_edit.build(draft, local=local))
    except ProfileError as error:
        return Entry(name, draft.path, findings=error.findings)


class ProfileList(Panel, can_focus=True):
    """The profiles, a row each; the one that ``s`` would start bears a mark."""

    DEFAULT_CSS = "ProfileList { padding: 0; margin-bottom: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.entries: tuple[Entry, ...] = ()
        self.cursor = 0
        self.top = 0
        self.rows = _LIST

    def lines(self, state: State, width: int) -> list[Content]:
        if not self.entries:
            return [Content.styled(" " + line, ink.DIM) for line in NO_PROFILE[:1]]
        self.top = max(0, min(self.top, self.cursor, len(self.entries) - self.rows))
        self.top = max(self.top, self.cursor - self.rows + 1)
        shown = range(self.top, min(len(self.entries), self.top + self.rows))
        more = len(self.entries) - self.rows
        title = ink.row(
            (f" PROFILES  {len(self.entries)}", ink.STRONG),
            (f", {more} more: j and k" if more > 0 else "", ink.DIM),
        )
        return [title, *(self._row(i, width) for i in shown)]

    def _row(self, number: int, width: int) -> Content:
        entry = self.entries[number]
        mark = "●" if entry.loaded else " "
        row = ink.row(
            ("▸" if number == self.cursor else " ", ink.NOW),
            (f"{mark} ", ink.GOOD),
            (fit(clean(entry.name), _NAME), ink.STRONG if entry.profile else ""),
            "  ",
            *said(entry, width - _NAME - 6),
        )
        row = ink.cut(row, width)
        if number != self.cursor:
            return row
        plain = row.plain + " " * (width - row.cell_length)
        return Content.styled(plain, "$block-cursor-foreground on $block-cursor-background")

    def on_click(self, event: events.Click) -> None:
        number = self.top + event.y - 1
        if event.y >= 1 and number < len(self.entries) and isinstance(self.screen, ProfileScreen):
            self.screen.point(number)


def said(entry: Entry, width: int) -> list[ink.Part]:
    """Model, engine and output of a profile; of a broken one, the first problem."""
    if entry.profile is None:
        if entry.findings:
            return [(f"✗ {finding_words(entry.findings[0])}", ink.BAD)]
        return [(f"✗ {clean(entry.problem)}", ink.BAD)]
    room = max(8, (width - _ENGINE - 4) // 2)
    profile = entry.profile
    return [
        fit(crop_left(clean(profile.model.path), room), room),
        "  ",
        (fit(clean(profile.engine.name), _ENGINE), ink.DIM),
        "  ",
        crop_left(clean(profile.output.dir), room),
    ]


def finding_words(finding: Finding) -> str:
    """``line 29, data.seq_len: no such key``"""
    line = f"line {finding.line}" if finding.line is not None else ""
    spot = ", ".join(part for part in (line, clean(finding.key)) if part)
    return f"{spot}: {clean(finding.what)}" if spot else clean(finding.what)


class Pointed(Panel):
    """Everything about the profile under the cursor."""

    DEFAULT_CSS = "Pointed { padding: 0 2 1 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.entry: Entry | None = None

    def lines(self, state: State, width: int) -> list[Content]:
        entry = self.entry
        if entry is None:
            return [Content.styled(line, ink.DIM) for line in NO_PROFILE]
        source = clean(str(entry.path)) if entry.path else "without a file"
        if entry.loaded and state.profile_run:
            source = f"run {clean(state.profile_run)}, {source}"
        words = ", as resolved, defaults included" if entry.profile and width >= 100 else ""
        rows = [
            ink.row(
                (f"PROFILE  {clean(entry.name)}", ink.STRONG),
                ("  loaded: s starts it" if entry.loaded else "  ⏎ loads it", ink.DIM),
            ),
            ink.row(
                ("from ", ink.DIM), crop_left(source, width - 5 - len(words)), (words, ink.DIM)
            ),
        ]
        if entry.loaded and state.overrides:
            rows += changed_rows(state)
        if entry.profile is not None:
            return [*rows, Content(""), *profile_rows(entry.profile, width)]
        return [*rows, Content(""), *_problems(entry)]


def changed_rows(state: State) -> list[Content]:
    """What of the loaded profile is not in its file."""
    sets = profile_edit.as_sets(scrub.value(dict(state.overrides)))
    return [ink.row(("! for this session: ", ink.LOOK), clean(words)) for words in sets]


def _problems(entry: Entry) -> list[Content]:
    if not entry.findings:
        return [ink.row(("✗ ", ink.BAD), clean(entry.problem))]
    rows = []
    for finding in entry.findings:
        rows.append(ink.row(("✗ ", ink.BAD), finding_words(finding)))
        rows.append(ink.row(("  ▸ ", ink.NOW), clean(finding.todo)))
    return rows


class ProfileScreen(ConsoleScreen):
    """The profiles, and all that is in the one under the cursor."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "load", "edit", "start", "preflight", "back", "help",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "load", "load", tooltip="make this the profile that s starts"),
        Binding("e", "edit", "edit", tooltip="change this profile; nothing is saved by itself"),
        Binding("down,j", "move(1)", "next", show=False, priority=True),
        Binding("up,k", "move(-1)", "previous", show=False, priority=True),
        Binding("g,home", "move(-1000000)", "first", show=False),
        Binding("G,end", "move(1000000)", "last", show=False),
        Binding("ctrl+d", "scroll(8)", "more of it", show=False),
        Binding("ctrl+u", "scroll(-8)", "less of it", show=False),
    ]

    def body(self) -> ComposeResult:
        yield ProfileList()
        with Scroll():
            yield Pointed()

    def on_mount(self) -> None:
        self._read(self.state, first=True)
        super().on_mount()

    def on_screen_resume(self) -> None:
        self._read(self.state)
        super().on_screen_resume()

    def take(self, state: State) -> None:
        was = self.state
        keys = (state.profile, state.profile_path, state.overrides)
        if keys != (was.profile, was.profile_path, was.overrides) and self.is_mounted:
            self._read(state)
        super().take(state)

    def _read(self, state: State, first: bool = False) -> None:
        """Look at the files again; the cursor stays on its profile."""
        panel = self.query_one(ProfileList)
        at = panel.entries[panel.cursor] if panel.entries else None
        panel.entries = entries(state)
        places = [
            i for i, e in enumerate(panel.entries) if at and (e.name, e.path) == (at.name, at.path)
        ]
        if first or not places:
            places = [i for i, e in enumerate(panel.entries) if e.loaded]
        panel.cursor = places[0] if places else 0

    def show(self, state: State) -> None:
        panel = self.query_one(ProfileList)
        panel.rows = _LIST if self.size.height < _TALL else max(_LIST, self.size.height // 3)
        self.query_one(Pointed).entry = self.entry()
        super().show(state)

    def entry(self) -> Entry | None:
        panel = self.query_one(ProfileList)
        return panel.entries[panel.cursor] if panel.cursor < len(panel.entries) else None

    def point(self, number: int) -> None:
        panel = self.query_one(ProfileList)
        panel.cursor = max(0, min(number, len(panel.entries) - 1))
        self.show(self.state)
        panel.refresh()

    def action_move(self, step: int) -> None:
        self.point(self.query_one(ProfileList).cursor + step)

    def action_scroll(self, rows: int) -> None:
        self.query_one(Scroll).scroll_relative(y=rows, animate=False)

    def action_load(self) -> None:
        """Take the profile as its file holds it now: changes for this session alone end."""
        entry = self.entry()
        if entry is None or entry.path is None:
            return
        try:
            draft = profile_save.opened(entry.path)
            profile = profile_edit.build(draft, local=self.state.target == "local")
        except ProfileError:
            words = "It cannot be used as it is; e opens it with every problem."
            self.notify(words, title=clean(entry.name), severity="warning", markup=False)
        except ConsoleError as error:
            self.complain(error.problem)
        else:
            self.post_message(ProfileTaken(profile, str(entry.path)))

    def action_edit(self) -> None:
        entry = self.entry()
        if entry is not None:
            self.post_message(
                EditAsked(entry.path if entry.path and entry.path.is_file() else None)
            )
