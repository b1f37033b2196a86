"""Themes and their contrast, no colour at all, the terminal's title, and how the end is told."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from eagle3_agent.protocol.messages import RunChanged
from eagle3_agent.protocol.values import Problem, RunSummary, Samples
from eagle3_console import plain, settings, themes
from eagle3_console.linkstate import Live, Reconnecting
from eagle3_console.outward import Outward, title_words
from support import scenes
from support.tui import make_app, rows, sees, until

WIDE = (120, 40)

#: What text is written in, on what: every pair of them can stand on a screen.
TEXT = ("foreground", "ink-dim", "ink-strong", "accent", "success", "warning", "error", "secondary")
BEHIND = ("background", "surface", "panel", "footer-background", "ink-rail")
#: Pairs of their own.
PAIRS = (
    ("block-cursor-foreground", "block-cursor-background"),
    ("footer-key-foreground", "footer-background"),
    ("footer-description-foreground", "footer-background"),
    ("background", "accent"),
)


def _colours(theme: Theme) -> dict[str, Color]:
    named = {**theme.to_color_system().generate(), **theme.variables}
    kept = {}
    for name in {*TEXT, *BEHIND, "ink-bar", "ink-spark", *(n for pair in PAIRS for n in pair)}:
        kept[name] = Color.parse(named[name])
        assert kept[name].a == 1, f"{theme.name} {name} is see-through: its contrast is not its own"
    return kept


def _luminance(colour: Color) -> float:
    """WCAG 2.2's relative luminance."""

    def linear(channel: int) -> float:
        part = channel / 255
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(colour.r) + 0.7152 * linear(colour.g) + 0.0722 * linear(colour.b)


def contrast(one: Color, other: Color) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_is_wcags() -> None:
    assert contrast(Color.parse("#000"), Color.parse("#fff")) == pytest.approx(21)
    assert contrast(Color.parse("#777"), Color.parse("#fff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", themes.THEMES, ids=lambda theme: theme.name)
def test_text_can_be_read_on_every_ground_of_its_theme(theme: Theme) -> None:
    least = 7.0 if theme is themes.CONTRAST else 4.5
    colours = _colours(theme)
    pairs = [(ink, ground) for ink in TEXT for ground in BEHIND] + list(PAIRS)
    if theme is themes.CONTRAST:  # nothing is written in red on the rail of a bar
        pairs.remove(("error", "ink-rail"))
    poor = {
        pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2)
        for pair in pairs
        if contrast(colours[pair[0]], colours[pair[1]]) < least
    }
    assert not poor


@pytest.mark.parametrize("theme", themes.THEMES, ids=lambda theme: theme.name)
def test_bars_and_lines_stand_out_from_what_is_behind_them(theme: Theme) -> None:
    colours = _colours(theme)
    for drawn in ("ink-bar", "ink-spark"):
        for ground in BEHIND:
            assert contrast(colours[drawn], colours[ground]) >= 3, (drawn, ground)


# ------------------------------------------------------------------------- what is kept


async def test_the_chosen_theme_is_there_the_next_time() -> None:
    app = make_app(scenes.idle())
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        assert app.theme == "eagle-dark"
        await pilot.press("ctrl+t")
        await sees(pilot, "The light theme", "It is kept for the next time.")
    assert make_app(scenes.idle()).theme == "eagle-light"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"theme": 3}', '{"theme": "nord"}', "\x00" * 9])
def test_a_spoiled_file_of_choices_counts_as_none(text: str) -> None:
    settings.path().parent.mkdir(parents=True, exist_ok=True)
    settings.path().write_text(text)
    assert make_app(scenes.idle()).theme == "eagle-dark"


def test_a_choice_is_written_whole_and_keeps_what_else_is_there() -> None:
    settings.path().parent.mkdir(parents=True, exist_ok=True)
    settings.path().write_text('{"later": 1}')
    assert settings.remember_theme("eagle-light") == ""
    assert '"later": 1' in settings.path().read_text()
    assert [p.name for p in settings.path().parent.iterdir()] == ["console.json"]
    assert stat.S_IMODE(settings.path().stat().st_mode) == 0o600


async def test_a_choice_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    blocked = settings.path().parent
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file where the folder should be")
    app = make_app(scenes.idle())
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("ctrl+t")
        await sees(pilot, "The light theme", "cannot be written")
        assert app.theme == "eagle-light"


# ------------------------------------------------------------------------- no colour


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True),
        ({"TERM": "dumb"}, True),
        ({"TERM": "vt220"}, True),
        ({"TERM": "xterm-mono"}, True),
    ],
)
def test_when_no_colour_is_wanted(env: dict[str, str], wanted: bool) -> None:
    assert plain.wanted(env) is wanted


async def test_without_colour_nothing_is_coloured_and_the_cursor_is_reversed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(scenes.failed())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3", "✗ failed")
        await pilot.press("h")
        await sees(pilot, "HISTORY")
        await until(pilot, lambda: bool(_reversed(app)), "a row in reverse video")
        for segment in _segments(app):
            style = segment.style or Style()
            for colour in (style.color, style.bgcolor):
                assert colour is None or colour.is_default, (segment, colour)
        assert "✗" in _reversed(app), "the cursor's row, with its outcome"


def _segments(app: object) -> list[Segment]:
    from eagle3_console.app import ConsoleApp

    assert isinstance(app, ConsoleApp)
    filters = app.get_line_filters()
    made = []
    for strip in app.screen._compositor.render_strips():
        segments = list(strip)
        for one in filters:
            segments = one.apply(segments, Color.parse("#000000"))
        made += segments
    return made


def _reversed(app: object) -> str:
    return "".join(s.text for s in _segments(app) if s.style is not None and s.style.reverse)


# ------------------------------------------------------------------------- the terminal


class Terminal:
    def __init__(self, **env: str) -> None:
        self.written: list[str] = []
        self.rung = 0
        self.outward = Outward(self.written.append, self._ring, {"TERM": "xterm-kitty", **env})

    def _ring(self) -> None:
        self.rung += 1


def test_a_run_that_ends_is_told_to_the_desktop_and_rings() -> None:
    terminal = Terminal()
    terminal.outward.ended("Run 4 failed", "rank 3")
    assert terminal.rung == 1
    assert "".join(terminal.written).startswith("\x1b]99;")
    plain_one = Terminal(TERM="xterm-256color")
    plain_one.outward.ended("Run 4 failed", "rank 3")
    assert (plain_one.rung, plain_one.written) == (1, [])
    silent = Terminal(EAGLE3_NOTIFY="off")
    silent.outward.ended("Run 4 failed", "rank 3")
    assert (silent.rung, silent.written) == (0, [])


def test_the_title_is_written_when_it_changes_and_given_back_once() -> None:
    terminal = Terminal()
    for text in ("eagle3 a", "eagle3 a", "eagle3 b"):
        terminal.outward.title(text)
    terminal.outward.give_back()
    terminal.outward.give_back()
    assert terminal.written == [
        "\x1b[22;2t\x1b]2;eagle3 a\x1b\\",
        "\x1b]2;eagle3 b\x1b\\",
        "\x1b]2;\x1b\\\x1b[23;2t",
    ]


@pytest.mark.parametrize("env", [{"EAGLE3_TITLE": "off"}, {"TERM": "linux"}, {"TERM": "dumb"}])
def test_a_title_that_is_not_wanted_or_not_known_is_never_written(env: dict[str, str]) -> None:
    terminal = Terminal(**env)
    terminal.outward.title("eagle3 a")
    terminal.outward.give_back()
    assert terminal.written == []


async def test_the_title_says_host_stage_and_percent_and_no_hosts_escape() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "412 / 1 000 samples")
        assert title_words(app.state) == "eagle3 gpu-01: extract 41 %"
        odd = replace(app.state, target="a@b\x1b]2;x\x07c")
        assert not {"\x1b", "\x07"} & set(title_words(odd))
        link.push(RunChanged(scenes.summary(4, state="failed", ended=scenes.NOW)))
        await until(pilot, lambda: title_words(app.state) == "eagle3 gpu-01: run 4 failed")
        why = Problem("The link was lost", "no answer", "")
        link.move(Reconnecting(1, scenes.NOW + 4, scenes.NOW, why))
        await until(pilot, lambda: title_words(app.state) == "eagle3 gpu-01: no link")


# ------------------------------------------------------------------------- the end of a run


def _ended(**changes: object) -> RunSummary:
    found = {"state": "failed", "ended": scenes.NOW, "cause": "rank 3 ran out of GPU memory"}
    return scenes.summary(4, **{**found, **changes})


async def test_an_end_is_told_once_with_its_first_cause_whatever_the_host_repeats() -> None:
    link = scenes.extracting()
    app = make_app(link)
    rung: list[int] = []
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        link.push(RunChanged(_ended()))
        await sees(pilot, "Run 4 failed after 31:11", "rank 3 ran out of GPU memory; e shows more")
        why = Problem("The link was lost", "no answer", "")
        link.move(Reconnecting(1, scenes.NOW + 4, scenes.NOW, why))
        link.move(Live(0.02, link.welcome))
        link.push(RunChanged(scenes.summary(4)))  # what was under way when the link broke
        link.push(RunChanged(_ended()))
        await pilot.pause()
    assert rung == [1]


async def test_a_run_that_had_ended_before_is_not_told() -> None:
    link = scenes.failed()
    app = make_app(link)
    rung: list[int] = []
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 3")
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        link.push(RunChanged(link.runs[0]))
        await pilot.pause()
    assert rung == []


async def test_toasts_hide_neither_the_keys_nor_the_runs_lines_on_the_smallest_screen() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await sees(pilot, "412 / 1 000 samples", "plan: 1 000")
        before = rows(app)
        for number in (4, 5, 6):
            app.notify("word " * 30, title=f"Run {number} failed", severity="error", markup=False)
        await sees(pilot, "Run 6 failed")
        after = rows(app)
    assert after[-1] == before[-1], "the row of keys"
    run_ends = next(i for i, row in enumerate(before) if "written" in row)
    assert after[: run_ends + 1] == before[: run_ends + 1]
    assert os.environ.get("NO_COLOR") is None


def test_samples_are_counted_in_the_words_of_an_end() -> None:
    from eagle3_console.words import ended_words

    title, text, severity = ended_words(
        _ended(state="incomplete", samples=Samples(10, 8, 2), cause="")
    )
    assert "incomplete" in title
    assert "8" in text
    assert severity == "warning"
