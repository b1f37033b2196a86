"""Two runs side by side: from the history by a mark, from a run's page by one key."""

from __future__ import annotations

from dataclasses import replace

from eagle3_agent.protocol.messages import GetRun
from eagle3_console.app import ConsoleApp
from eagle3_console.screens.diff import DiffScreen
from eagle3_console.screens.history import HistoryScreen
from support import scenes
from support.fakelink import FakeLink
from support.tui import make_app, misses, rows, sees, until

SIZE = (120, 40)


def changed() -> FakeLink:
    """Run 3 asked for 10 samples, without the patches of run 4."""
    link = scenes.extracting()
    old = link.details["0003"]
    data = replace(old.resolved.data, max_samples=10)
    link.details["0003"] = replace(old, resolved=replace(old.resolved, data=data), patches=())
    return link


def compared(app: ConsoleApp) -> tuple[str, str]:
    assert isinstance(app.screen, DiffScreen)
    return app.screen.before, app.screen.after


async def test_a_marked_run_is_compared_with_the_one_under_the_cursor() -> None:
    app = make_app(changed())
    async with app.run_test(size=SIZE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h", "j", "space")
        await sees(pilot, "◆ run 3 · d on another")
        assert any(row.startswith("◆") for row in rows(app))
        await pilot.press("k", "d")
        await sees(pilot, "run 3 ✗ failed 17:44  →  run 4 ▶ running")
        await sees(pilot, "data.max_samples   10 → 1000", "+ speculators/reply-shape", "the same")
        assert compared(app) == ("0003", "0004")
        await misses(pilot, "= model.path")
        await pilot.press("space")
        await sees(pilot, "= model.path")
        await pilot.press("space", "x")
        await sees(pilot, "data.max_samples   1000 → 10", "- speculators/reply-shape")
        await pilot.press("escape", "j", "space")
        assert isinstance(app.screen, HistoryScreen)
        await misses(pilot, "d on another")


async def test_from_a_runs_page_it_is_the_comparable_run_before_it() -> None:
    link = changed()
    done = scenes.summary(2, state="completed", attempt=1, ended=scenes.NOW - 79871)
    link.runs = (link.runs[0], done, *link.runs[2:])
    link.details["0002"] = scenes.detail(done)
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h", "enter")
        await sees(pilot, "d diff")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, DiffScreen))
        assert compared(app) == ("0002", "0004")
        await sees(pilot, "run 2 ✓ completed")


async def test_without_a_completed_one_it_is_the_try_before() -> None:
    app = make_app(changed())
    async with app.run_test(size=SIZE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, DiffScreen))
        assert compared(app) == ("0003", "0004")


async def test_the_first_run_has_nothing_to_be_compared_with() -> None:
    link = changed()
    link.runs = link.runs[3:]
    app = make_app(link)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("d")
        await sees(pilot, "No other run to compare with")


async def test_while_the_host_has_not_answered_it_says_what_is_read() -> None:
    link = changed()
    kept = link.details.pop("0003")
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("d")
        await sees(pilot, "reading run 0003")
        assert GetRun(0, "0003") in link.asked
        link.details["0003"] = kept
        await pilot.press("escape", "d")
        await sees(pilot, "10 → 1000")
