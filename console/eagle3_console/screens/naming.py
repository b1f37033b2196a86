"""The name of a new profile: asked for in a box, judged as it is typed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3_console import profile_save
from eagle3_console.errors import ConsoleError
from eagle3_console.hosttext import clean
from eagle3_console.widgets import ink


class NameScreen(ModalScreen[str]):
    """Asks for a new profile's name; says at once what a name cannot be."""

    DEFAULT_CSS = """
    NameScreen { align: center middle; background: $background 60%; }
    NameScreen > Vertical { width: 76; max-width: 96%; height: auto;
        border: round $accent; background: $surface; padding: 1 2; }
    NameScreen Input { height: 1; background: $panel; margin: 1 0; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "do not save")]

    def __init__(self, question: str, name: str) -> None:
        super().__init__()
        self.question = question
        self.proposed = name

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Content.styled(clean(self.question), ink.STRONG))
            yield Input(self.proposed, compact=True)
            yield Static(id="told")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        told = self.query_one("#told", Static)
        try:
            path = profile_save.own_path(event.value)
        except ConsoleError as error:
            words = clean(f"{error.problem.happened} {error.problem.todo}")
            told.update(Content.styled(f"✗ {words}", ink.BAD))
        else:
            told.update(Content.styled(f"⏎ writes {clean(str(path))}", ink.DIM))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            profile_save.own_path(event.value)
        except ConsoleError:
            return  # it is said below the field
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
