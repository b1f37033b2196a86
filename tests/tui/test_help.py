"""``?`` and ctrl+p: the real bindings of the screen in front, filtered, in the console's words."""

from __future__ import annotations

from textual.widgets import Input

from eagle3_console import keys, settings
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.help import HelpScreen
from eagle3_console.screens.log import LogScreen
from support import scenes
from support.tui import make_app, misses, sees, shown, until

WIDE = (120, 40)


async def test_every_binding_of_the_screen_in_front_is_in_the_help() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=(120, 60)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        found = keys.of(app.screen.active_bindings.values())
        assert {"search", "help", "quit"} <= {k.name for k in (*found.here, *found.everywhere)}
        await pilot.press("question_mark")
        await sees(pilot, "This screen", "Everywhere", "the run's whole output")
        help_screen = app.screen
        assert isinstance(help_screen, HelpScreen)
        text = "\n".join(row.plain for row in help_screen.rows(90))
        for key in (*found.here, *found.everywhere):
            assert key.keys[0] in text, key
            assert key.does[:14] in text, key
        assert "EAGLE3_NOTIFY=off" in text


async def test_typing_filters_and_escape_first_clears_then_closes() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("question_mark")
        await sees(pilot, "KEYS   type to filter", "every run on this host")
        await pilot.press(*"abort")
        await sees(pilot, "filter abort", "end a run and all its processes; asks first")
        await misses(pilot, "every run on this host")
        await pilot.press(*"qq")
        await sees(pilot, "no key does that")
        await pilot.press("backspace", "backspace")
        await sees(pilot, "end a run and all its processes")
        await pilot.press("escape")
        await sees(pilot, "every run on this host")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_what_cannot_be_done_now_says_so() -> None:
    app = make_app(scenes.extracting(), read_only=True)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("question_mark")
        await sees(pilot, "not now: end a run and all its processes")


async def test_the_help_fits_the_smallest_screen_and_scrolls() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("question_mark")
        await sees(pilot, "KEYS", "esc closes", "Everywhere")
        await pilot.press("end")
        await sees(pilot, "EAGLE3_TITLE=off")
        assert "KEYS" in shown(app)


async def test_the_palette_offers_the_consoles_own_actions_and_themes() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("ctrl+p")
        await sees(pilot, "Start  (s)", "History  (h)")
        await misses(pilot, "Screenshot", "Maximize")
        app.screen.query_one(Input).value = "high contrast"
        await sees(pilot, "Theme: high contrast")
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "eagle-contrast")
        assert settings.theme() == "eagle-contrast"


async def test_an_action_of_the_palette_is_done_on_the_screen_below() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("ctrl+p")
        app.screen.query_one(Input).value = "log"
        await sees(pilot, "Log  (l)")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
