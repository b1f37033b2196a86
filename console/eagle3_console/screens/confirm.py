"""Small questions and messages over a screen: yes or no, a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from eagle3_agent.protocol.values import Problem
from eagle3_console.hosttext import clean
from eagle3_console.widgets import ink

#: Rows of a question besides what is said: border, padding, title and answers with their gaps.
_AROUND = 8

_BOX = """
    align: center middle;
    background: $background 60%;
"""


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something that cannot be undone; No has the focus."""

    DEFAULT_CSS = (
        "ConfirmScreen {"
        + _BOX
        + """}
    ConfirmScreen > Vertical { width: 76; max-width: 96%; height: auto; max-height: 90%;
        border: round $warning; background: $surface; padding: 1 2; }
    ConfirmScreen #title { text-style: bold; margin-bottom: 1; }
    ConfirmScreen #said { height: auto; }
    ConfirmScreen Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    ConfirmScreen Button { margin-left: 2; min-width: 10; background: $panel;
        color: $foreground; text-style: none; }
    ConfirmScreen Button:focus { background: $accent; color: $background; text-style: bold; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
        Binding("left,right,h,l,tab", "other", "other button", show=False),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "scroll(10)", "page down", show=False),
        Binding("pageup,ctrl+b", "scroll(-10)", "page up", show=False),
    ]

    def __init__(self, title: str, said: Sequence[str], yes: str) -> None:
        super().__init__()
        self.question = title
        self.said = said
        self.yes = yes

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Content(clean(self.question)), id="title")
            with VerticalScroll(id="said", can_focus=False):
                yield Static(Content("\n".join(clean(line) for line in self.said)))
            with Horizontal():
                yield Button(Content("No (n)"), id="no", compact=True)
                yield Button(Content(f"{self.yes} (y)"), id="yes", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_resize(self) -> None:
        # what is said scrolls; question and answers stay in sight on the lowest screen
        self.query_one("#said").styles.max_height = max(2, self.size.height * 9 // 10 - _AROUND)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def action_scroll(self, rows: int) -> None:
        self.query_one("#said").scroll_relative(y=rows, animate=False)

    def action_other(self) -> None:
        self.focus_next()


class ProblemScreen(ModalScreen[None]):
    """A Problem as it stands: title, what happened, what to do."""

    DEFAULT_CSS = (
        "ProblemScreen {"
        + _BOX
        + """}
    ProblemScreen > Vertical { width: 76; max-width: 96%; height: auto; max-height: 90%;
        border: round $error; background: $surface; padding: 1 2; }
    ProblemScreen VerticalScroll { height: auto; max-height: 16; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "close", "close"),
    ]

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def compose(self) -> ComposeResult:
        problem = self.problem
        said = [Content.styled(f"✗ {clean(problem.title)}", f"bold {ink.BAD}"), Content("")]
        said += [Content(clean(line)) for line in problem.happened.splitlines()[:200]]
        if problem.todo:
            lines = [clean(line) for line in problem.todo.splitlines()[:50]]
            said += [Content(""), ink.row(("▸ ", ink.NOW), "\n  ".join(lines))]
        with Vertical():
            with VerticalScroll():
                yield Static(Content("\n").join(said))
            yield Static(Content.styled("\nesc closes", ink.DIM))

    def action_close(self) -> None:
        self.dismiss(None)
