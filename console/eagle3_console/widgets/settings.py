"""The rows of the profile's editor: a setting with its value, its field, and what it is for."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from eagle3_console import profile_edit, scrub
from eagle3_console.hosttext import clean, crop, crop_left, fit
from eagle3_console.profile import Finding
from eagle3_console.profile_edit import Draft, Row
from eagle3_console.profile_settings import Fault
from eagle3_console.store import State

from . import ink
from .panel import Panel

#: Cells of a screen that has room for what each setting is for.
_WIDE = 150
#: Cells of a setting's name.
NAME = 26

_DEFAULTS = profile_edit.defaults()


def masked(row: Row, value: Any) -> str:
    """A value as it may stand on a screen."""
    if isinstance(value, dict):
        value = scrub.value(value)
    return clean(profile_edit.shown(value))


def row_line(row: Row, width: int, pointed: bool) -> Content:
    """``▸● max_samples   10   was 1000``: symbols say what the colours say."""
    mark, style = " ", ""
    if row.findings:
        mark, style = "✗", ink.BAD
    elif row.changed:
        mark, style = "●", ink.LOOK
    name = row.setting.name if row.setting is not None else row.key
    label = min(NAME, width * 2 // 5)
    room = width if width < _WIDE else width // 2
    line = ink.cut(
        ink.row(
            ("▸" if pointed else " ", f"bold {ink.NOW}"),
            (f"{mark} ", style),
            (fit(clean(name), label), ink.STRONG if pointed else ""),
            "  ",
            *_value(row, style, max(8, room - label - 5)),
        ),
        room,
    )
    if width >= _WIDE and row.setting is not None:
        doc = crop(row.setting.doc, width - room - 3)
        line = ink.row(line, " " * (room - line.cell_length + 2), (doc, ink.DIM))
    if not pointed:
        return line
    plain = line.plain + " " * (width - line.cell_length)
    return Content.styled(plain, "$block-cursor-foreground on $block-cursor-background")


def _value(row: Row, style: str, room: int) -> list[ink.Part]:
    was = ""
    if row.changed:
        whose = f"{clean(row.compared)}:" if row.compared else "was"
        was = f"{whose} {crop(masked(row, row.before), room // 2) or 'left out'}"
    if row.value is None:
        default = _DEFAULTS.get(row.key)
        words = "default" if default is None else f"{masked(row, default)}   default"
        if row.setting is not None and row.setting.required:
            words = "missing"
        return [(words, style or ink.DIM), (f"   {was}" if was else "", ink.DIM)]
    value = crop(masked(row, row.value), room - len(was) - 3 if was else room)
    return [(value, style), (f"   {was}" if was else "", ink.DIM)]


class SettingRow(Widget):
    """One setting, a row high."""

    DEFAULT_CSS = "SettingRow { height: 1; width: 1fr; text-wrap: nowrap; }"

    class Clicked(Message):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row
        self.pointed = False

    def show(self, row: Row, pointed: bool) -> None:
        if (row, pointed) != (self.row, self.pointed):
            self.row, self.pointed = row, pointed
            self.refresh()

    def render(self) -> Content:
        return row_line(self.row, max(1, self.size.width), self.pointed)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Clicked(self.row.key))


class Field(Vertical):
    """A setting's field in the place of its row, with what is wrong below it as one types."""

    DEFAULT_CSS = """
    Field { height: auto; background: $surface; }
    Field Horizontal { height: 1; }
    Field Horizontal Static { width: auto; color: $accent; text-style: bold; }
    Field Input { width: 1fr; height: 1; background: $panel; padding: 0 1; }
    Field Input.-textual-compact { padding: 0 1 !important; }
    Field .wrong { height: auto; padding: 0 0 0 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "leave as it was"),
    ]

    class Done(Message):
        """The field was left; ``words`` is None when nothing shall change."""

        def __init__(self, row: Row, words: str | None) -> None:
            super().__init__()
            self.row = row
            self.words = words

    def __init__(
        self, row: Row, judge: Callable[[Row, str], tuple[list[Fault], tuple[Finding, ...]]]
    ) -> None:
        super().__init__()
        self.row = row
        self._judge = judge

    def compose(self) -> ComposeResult:
        name = self.row.setting.name if self.row.setting is not None else self.row.key
        with Horizontal():
            yield Static(Content(f"▸  {fit(clean(name), min(NAME, 26))} "))
            yield Input(profile_edit.shown(self.row.value), compact=True, select_on_focus=False)
        yield Static(classes="wrong")

    def on_mount(self) -> None:
        self._say(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._say(event.value)

    def _say(self, words: str) -> None:
        faults, findings = self._judge(self.row, words)
        told = [(f.what, f.todo) for f in faults] or [(f.what, f.todo) for f in findings]
        width = max(20, self.size.width - 6) if self.size.width else 70
        rows: list[Content] = []
        for what, todo in told:
            rows += _wrapped("✗ ", clean(what), f"bold {ink.BAD}", width)
            rows += _wrapped("▸ ", clean(todo), ink.NOW, width)
        if not rows:
            default = "   empty: left out" if self.row.setting is not None else ""
            rows = [Content.styled(f"⏎ takes it, esc leaves it as it was{default}", ink.DIM)]
        self.query_one(".wrong", Static).update(Content("\n").join(rows))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Done(self.row, event.value))

    def action_cancel(self) -> None:
        self.post_message(self.Done(self.row, None))


def _wrapped(mark: str, words: str, style: str, width: int) -> list[Content]:
    lines = textwrap.wrap(words, max(16, width - 2), break_on_hyphens=False) or [""]
    return [
        ink.row((mark if not i else "  ", style), (line, style if mark == "✗ " else ""))
        for i, line in enumerate(lines)
    ]


class EditHead(Panel):
    """Which profile, how much of it is changed, and what keeps it from being used."""

    DEFAULT_CSS = "EditHead { padding: 0 1; margin-bottom: 1; }"

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft
        self.rows: tuple[Row, ...] = ()

    def lines(self, state: State, width: int) -> list[Content]:
        draft = self.draft
        changed = sum(row.changed for row in self.rows)
        wrong = sum(len(row.findings) for row in self.rows)
        counts = [f"● {changed} changed" if changed else "", f"✗ {wrong} wrong" if wrong else ""]
        if draft.against_name and changed:
            counts[0] = f"● {changed} differ from {clean(draft.against_name)}"
        said = "  ".join(word for word in counts if word) or "as in the file"
        style = ink.BAD if wrong else ink.LOOK if changed else ink.DIM
        title = ink.row((f"EDIT  {clean(draft.name)}", ink.STRONG))
        where = clean(str(draft.path)) if draft.on_disk else "no file yet"
        more = f", as run {clean(draft.run)} had it" if draft.run else ""
        if not draft.on_disk:
            name = clean(draft.against_name)
            more += f"; compared with the loaded {name}" if name else "; no profile is loaded"
            said = said.replace("as in the file", f"the same as {name}" if name else "")
        return [
            ink.ends(title, Content.styled(said, style), width),
            Content.styled(
                crop(crop_left(where, max(12, width - len(more))) + more, width), ink.DIM
            ),
        ]


class Doc(Panel):
    """What the setting under the cursor is for, and what is wrong with it."""

    DEFAULT_CSS = """
    Doc { height: 4; padding: 0 1; background: $surface; }
    Doc.-tall { height: 5; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.row: Row | None = None

    def lines(self, state: State, width: int) -> list[Content]:
        row = self.row
        if row is None:
            return [Content.styled("no setting matches; esc shows all again", ink.DIM)]
        if row.setting is None:
            rows = [Content.styled(f"{clean(row.key)}: no setting; d removes it", ink.STRONG)]
        else:
            rows = [ink.row((clean(row.key), ink.STRONG), (f"   {takes(row)}", ink.DIM))]
        for finding in row.findings[:3]:
            line = f"line {finding.line}: " if finding.line is not None and not row.changed else ""
            rows += _wrapped("✗ ", line + clean(finding.what), ink.BAD, width)
            rows += _wrapped("▸ ", clean(finding.todo), ink.NOW, width)
        if row.setting is not None:
            doc = textwrap.wrap(row.setting.doc, width, break_on_hyphens=False)
            rows += [Content(line) for line in doc]
        return rows

    def get_content_height(self, *_: object) -> int:
        return max(1, self.content_size.height)


def takes(row: Row) -> str:
    """What a setting can be, and how it is changed here."""
    setting = row.setting
    if setting is None:
        return ""
    if setting.kind == "choice":
        return "⏎ ← → " + " · ".join(setting.choices)
    words = {
        "boolean": "⏎ true · false",
        "integer": f"a whole number from {setting.minimum}"
        + (f" to {setting.maximum}" if setting.maximum < 2**31 - 1 else ""),
        "number": "a number above 0, up to 1",
        "integers": "a list, such as " + setting.example,
        "texts": "a list, such as " + setting.example,
        "env": "a table, such as " + setting.example,
        "size": "a size, such as 8GiB",
        "path": "a path on the host",
        "text": "text",
    }[setting.kind]
    return words + (", or all" if setting.takes_all else "")


class Filter(Input):
    """Enter goes back to the list at once: the next key is the list's already."""

    def _on_key(self, event: events.Key) -> None:  # type: ignore[override]
        if self.screen.focused is not self:
            event.prevent_default()  # it was typed for the list, on a screen that lags
        elif event.key == "enter":
            self.screen.set_focus(None)
            event.stop()
            event.prevent_default()
