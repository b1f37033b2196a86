"""The history: filtered as one types, ordered by a column."""

from __future__ import annotations

from dataclasses import replace

from textual.pilot import Pilot
from textual.widgets import Input

from eagle3_agent.protocol.messages import RunChanged
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.history import HistoryScreen
from eagle3_console.widgets.runlist import RunList
from support import scenes
from support.tui import make_app, misses, sees, until

SIZE = (120, 40)


async def opened(pilot: Pilot[int]) -> RunList:
    await sees(pilot, "RUN 4")
    await pilot.press("h")
    await until(pilot, lambda: isinstance(pilot.app.screen, HistoryScreen))
    await sees(pilot, "4 runs", "smollm2-demo")
    return pilot.app.screen.query_one(RunList)


def numbers(runs: RunList) -> list[int]:
    return [r.number for r in runs.runs]


async def test_the_list_is_filtered_while_one_types_and_escape_gives_all_back() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE) as pilot:
        runs = await opened(pilot)
        assert numbers(runs) == [4, 3, 2, 1]
        await pilot.press("slash", *"state:failed")
        await until(pilot, lambda: numbers(runs) == [3, 1])
        await sees(pilot, "2 match state:failed")
        await pilot.press(*" -run:3")
        await until(pilot, lambda: numbers(runs) == [1])
        await pilot.press("enter")
        await until(pilot, lambda: runs.has_focus)
        await pilot.press("enter")
        await sees(pilot, "RUN 1")
        await pilot.press("escape")
        await sees(pilot, "1 match")
        await pilot.press("escape")
        await until(pilot, lambda: numbers(runs) == [4, 3, 2, 1])
        await misses(pilot, "match")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_a_filter_that_fits_nothing_or_compares_nothing_says_so() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE) as pilot:
        runs = await opened(pilot)
        await pilot.press("slash", *"zzz")
        await sees(pilot, "0 match zzz")
        assert runs.selected is None
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, HistoryScreen)
        await pilot.press("escape", "slash", *"took>soon")
        await sees(pilot, "took>soon compares nothing")


async def test_typing_a_filter_is_not_taken_for_keys_and_markup_stays_text() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("slash", *"saq[b]")
        assert isinstance(app.screen, HistoryScreen)
        assert app.screen.query_one(Input).value == "saq[b]"
        await sees(pilot, "0 match saq[b]")


async def test_the_list_is_ordered_by_a_column_and_the_cursor_stays_on_its_run() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE) as pilot:
        runs = await opened(pilot)
        await sees(pilot, "run▾")
        await pilot.press("j")
        selected = runs.selected
        assert selected is not None
        await pilot.press("o")
        await sees(pilot, "took▾")
        took = [(r.ended or app.state.host_now) - (r.started or 0) for r in runs.runs]
        assert took == sorted(took, reverse=True)
        assert runs.selected is not None
        assert runs.selected.run == selected.run
        await pilot.press("O", "O")
        await sees(pilot, "run▴")
        assert numbers(runs) == [1, 2, 3, 4]


async def test_a_new_run_appears_in_a_filtered_list_if_it_fits() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        runs = await opened(pilot)
        await pilot.press("slash", *"failed")
        await until(pilot, lambda: numbers(runs) == [3, 1])
        one = next(r for r in scenes.history() if r.number == 1)
        link.push(RunChanged(replace(one, run="0009", number=9)))
        link.push(RunChanged(replace(one, run="0010", number=10, state="completed", error=None)))
        await until(pilot, lambda: numbers(runs) == [9, 3, 1])
