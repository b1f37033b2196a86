"""The preflight screen: an answer, its actions, the deep checks; over a link that answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from rich.cells import cell_len

from eagle3_agent.protocol.messages import (
    Act,
    Acted,
    Checked,
    Message,
    Probing,
    RunPreflight,
    Start,
)
from eagle3_agent.protocol.values import Action, Problem, Report, Verdict
from eagle3_console.app import ConsoleApp
from eagle3_console.errors import ConsoleError
from eagle3_console.screens.base import Scroll
from eagle3_console.screens.confirm import ConfirmScreen
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.preflight import PreflightScreen
from support import scenes, thirty, verdicts
from support.fakelink import FakeLink
from support.tui import make_app, misses, rows, sees, shown, until

NOW = scenes.NOW
SIZES = [(80, 24), (120, 40), (200, 60)]


def offering() -> FakeLink:
    """Thirty checks, three actions; the service can be stopped, which helps."""
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.many(NOW - 1)))
    return link


def helping(link: FakeLink, helped: bool = True) -> None:
    def act(message: Message) -> Message:
        assert isinstance(message, Act)
        if helped:
            link.answer(RunPreflight, lambda _: Checked(0, verdicts.mended(NOW - 1)))
        verdict = thirty.CLEAN if helped else thirty.VERDICTS[3]
        return Acted(0, ("systemctl stop: done after 3.1 s",), verdict, helped)

    link.answer(Act, act)


def chosen(app: ConsoleApp) -> str:
    """The action that the mark stands at."""
    return next((r.split("❯")[1].split(None, 1)[1].strip() for r in rows(app) if "❯" in r), "")


# ------------------------------------------------------------------------- an answer


@pytest.mark.parametrize("size", SIZES)
async def test_the_answer_then_the_block_in_full_then_its_ways_out(size: tuple[int, int]) -> None:
    app = make_app(offering())
    async with app.run_test(size=size) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "✗ BLOCKED by 1 of 30 checks", "! 3 warn", "✓ 25 pass", "· 1 cannot tell")
        text = " ".join(shown(app).split())
        order = [
            "BLOCKED by 1 of 30 checks",
            "8 of 8 GPUs hold 71.2 GiB",
            "since 2026-05-29 09:12",
            "vLLM takes gpu_memory_utilization of the whole memory",
            "▸ Stop the service for the run: systemctl stop vllm-router.service",
            "❯ 1 Stop vllm-router.service, whose process holds GPU 0 to 7",
            "2 End pid 48213",
            "Clocks not held back",
        ]
        places = [text.index(words) for words in order]
        assert places == sorted(places)
        screen = rows(app)
        assert [cell_len(row) for row in screen] == [size[0]] * size[1]
        body = [row for row in screen[:-1] if "…" in row]
        assert body == [], "nothing is cut"


async def test_everything_of_thirty_checks_can_be_reached_at_80_by_24() -> None:
    app = make_app(offering())
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p", "space")
        await sees(pilot, "BLOCKED by 1")
        seen = set()
        for _ in range(12):
            for row in rows(app):
                seen |= {v.title for v in thirty.VERDICTS if v.title in row}
            await pilot.press("pagedown")
            await pilot.pause()
        assert seen == {v.title for v in thirty.VERDICTS}


async def test_why_a_warning_matters_is_shown_where_there_is_room() -> None:
    why = "One slow rank holds the other seven"
    for size, there in (((80, 24), False), ((120, 40), True)):
        app = make_app(offering())
        async with app.run_test(size=size) as pilot:
            await sees(pilot, "No run")
            await pilot.press("p")
            await sees(pilot, "BLOCKED by 1", "Clocks not held back")
            assert (why in shown(app)) is there
            await pilot.press("space")
            await sees(pilot, why)


async def test_ready_names_the_key_that_starts() -> None:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.mended(NOW - 1)))
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "✓ READY · ! 3 to look at", "s starts it")


# ------------------------------------------------------------------------- actions


async def test_keys_move_over_the_actions_and_on_to_what_is_below() -> None:
    app = make_app(offering())
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        assert chosen(app).startswith("Stop vllm-router.service")
        await pilot.press("down")
        await until(pilot, lambda: chosen(app).startswith("End pid 48213"))
        await pilot.press("k")
        await until(pilot, lambda: chosen(app).startswith("Stop vllm"))
        await pilot.press("j", "j")
        await until(pilot, lambda: chosen(app).startswith("Move the 412 files"), "scrolled to it")
        for _ in range(20):
            await pilot.press("down")
        await sees(pilot, "25 pass · 1 cannot tell", "space shows them")
        await pilot.press("k", "k")
        await until(pilot, lambda: chosen(app).startswith("Stop vllm"))


async def test_without_actions_the_same_keys_scroll() -> None:
    link = offering()
    bare = tuple(replace(v, actions=()) for v in thirty.VERDICTS)
    link.answer(RunPreflight, lambda _: Checked(0, Report(bare, 1.0, NOW - 1)))
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "BLOCKED")
        await pilot.press("j", "down", "j")
        await until(pilot, lambda: app.screen.query_one(Scroll).scroll_offset.y == 3)
        await pilot.press("k")
        await until(pilot, lambda: app.screen.query_one(Scroll).scroll_offset.y == 2)


@pytest.mark.parametrize("keys", [("enter",), ("1",)])
async def test_an_action_shows_its_whole_effect_and_no_is_the_default(
    keys: tuple[str, ...],
) -> None:
    link = offering()
    helping(link)
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press(*keys)
        await sees(pilot, "Stop vllm-router.service, whose process holds GPU 0 to 7?")
        text = " ".join(shown(app).replace("│", " ").split())
        for line in thirty.STOP.effect:
            assert f"• {line}" in text
        assert app.focused is not None
        assert app.focused.id == "no"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PreflightScreen))
    assert link.asked_for(Act) == []


async def test_an_action_that_helps_is_told_with_what_was_done_and_all_is_checked_again() -> None:
    link = offering()
    helping(link)
    app = make_app(link)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("1")
        await sees(pilot, "Do it (y)")
        await pilot.press("y")
        await sees(
            pilot,
            "✓ READY",
            "✓ It helped: Stop vllm-router.service",
            "systemctl stop: done after 3.1 s",
            "GPU memory free now: 8 GPUs, each with 79.3 GiB or more free",
        )
        assert len(link.asked_for(RunPreflight)) == 2
        (act,) = link.asked_for(Act)
        assert act == Act(0, scenes.PROFILE, "gpu-clean", thirty.STOP)
        await until(pilot, lambda: chosen(app).startswith("Move the 412"), "the next that is left")
        await pilot.press("r")
        await misses(pilot, "✓ It helped: Stop vllm-router.service, whose")


async def test_an_action_that_does_not_help_says_so_and_stays_offered() -> None:
    link = offering()
    helping(link, helped=False)
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("enter", "y")
        await sees(
            pilot, "! It did not help: Stop vllm-router.service", "BLOCKED by 1 of 30", "❯ 1"
        )


async def test_a_refused_action_shows_why_and_nothing_is_checked_again() -> None:
    link = offering()
    problem = Problem("The target changed", "pid 48213 is another process now", "Check again.")
    link.answer(Act, lambda _: ConsoleError(problem))
    app = make_app(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("2")
        await sees(pilot, "End pid 48213 (VLLM::Worker_TP3) and 7 others?")
        await pilot.press("y")
        await sees(pilot, "✗ Not done: End pid 48213", "pid 48213 is another process now")
    assert len(link.asked_for(RunPreflight)) == 1


async def test_while_an_action_is_under_way_nothing_else_is_asked_for() -> None:
    link = offering()
    helping(link)
    link.held[Act] = asyncio.Event()
    app = make_app(link)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("1", "y")
        await sees(pilot, "▶ Stop vllm-router.service, whose process holds GPU 0 to 7")
        await pilot.press("1", "2", "enter", "r", "D", "s", "o", "x")
        await pilot.pause()
        assert isinstance(app.screen, PreflightScreen), "no second question"
        assert len(link.asked_for(Act)) == 1
        assert len(link.asked_for(RunPreflight)) == 1
        link.held[Act].set()
        await sees(pilot, "It helped")
    assert link.asked_for(Start) == []


async def test_read_only_shows_the_actions_and_says_why_they_cannot_be_taken() -> None:
    link = offering()
    app = make_app(link, read_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "·  Stop vllm-router.service", "opened with --read-only")
        assert "❯" not in shown(app)
        await pilot.press("1")
        await sees(pilot, "Not done")
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen)
    assert link.asked_for(Act) == []


async def test_a_long_effect_can_be_read_to_its_end_before_the_answer() -> None:
    link = offering()
    effect = tuple(f"Sends TERM to pid {n}, waits, then KILL." for n in range(100, 160))
    action = Action("terminate-100", "terminate", "End 60 processes", effect)
    bad = Verdict("leftovers", "Leftovers", "block", "60 processes", actions=(action,))
    link.answer(RunPreflight, lambda _: Checked(0, Report((bad,), 1.0, NOW - 1)))
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("enter")
        await sees(pilot, "pid 100,")
        assert "pid 159" not in shown(app)
        for _ in range(8):
            await pilot.press("pagedown")
        await sees(pilot, "pid 159,", "No (n)", "Do it (y)")
        await pilot.press("k")
        assert app.focused is not None
        assert app.focused.id == "no"


# ------------------------------------------------------------------------- deep


def deep(link: FakeLink) -> None:
    """The next check stands at 14 of 22 probes until it is let go."""
    link.progress = [Probing(0, 14, 22, ("nccl", "disk-speed", "tiny-engine"))]
    link.held[RunPreflight] = asyncio.Event()


async def test_d_runs_the_deep_set_and_shows_what_it_waits_for() -> None:
    link = offering()
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "BLOCKED by 1")
        deep(link)
        await pilot.press("D")
        await sees(
            pilot,
            "checking the host deeply",
            "14 of 22 probes",
            "waiting for nccl, disk-speed",
            "x stop",
        )
        asked = link.asked_for(RunPreflight)[-1]
        assert isinstance(asked, RunPreflight)
        assert asked.deep
        link.held[RunPreflight].set()
        await sees(pilot, "BLOCKED by 1", "deep · 1.8 s")
        await misses(pilot, "x stop", "14 of 22")


async def test_x_gives_a_deep_check_up_and_the_last_report_stays() -> None:
    link = offering()
    app = make_app(link)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "BLOCKED by 1")
        deep(link)
        await pilot.press("D")
        await sees(pilot, "14 of 22")
        await pilot.press("x")
        await sees(pilot, "BLOCKED by 1", "The check was given up")
        assert [w for w in app.workers if w.group == "check" and w.is_running] == []
        assert app.state.checks.since is None
        link.held.clear()
        await pilot.press("r")
        await until(pilot, lambda: len(link.asked_for(RunPreflight)) == 3)


async def test_a_deep_check_beside_a_run_asks_first() -> None:
    link = scenes.extracting()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.many(NOW - 1)))
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("p")
        await sees(pilot, "BLOCKED by 1")
        await pilot.press("D")
        await sees(pilot, "Check deeply beside a run?")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PreflightScreen))
        assert len(link.asked_for(RunPreflight)) == 1
        await pilot.press("D", "y")
        await until(pilot, lambda: len(link.asked_for(RunPreflight)) == 2)


async def test_after_an_action_a_deep_report_is_kept_but_for_the_one_check() -> None:
    link = offering()
    helping(link)
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "BLOCKED by 1")
        await pilot.press("D")
        await sees(pilot, "deep ·")
        await pilot.press("1", "y")
        await sees(pilot, "READY", "It helped", "deep ·")
    assert len(link.asked_for(RunPreflight)) == 2


# ------------------------------------------------------------------------- history


async def test_a_runs_page_has_its_preflight_folded_and_says_what_was_known() -> None:
    link = scenes.extracting()
    link.details["0003"] = replace(link.details["0003"], preflight=verdicts.many(NOW - 9000))
    app = make_app(link)
    async with app.run_test(size=(120, 100)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h", "down", "enter")
        await sees(pilot, "RUN 3", "before it", "25 of 30 checks were clean; blocked gpu-clean;")
        await sees(pilot, "✗ BLOCKED by 1 of 30 checks", "25 pass · 1 cannot tell")
        assert "Fabric manager" not in shown(app)
        assert "❯" not in shown(app), "what was offered then cannot be taken now"
        await pilot.press("space")
        await sees(pilot, "Fabric manager")
        await pilot.press("e")
        await sees(pilot, "What happened first", "25 of 30 checks were clean")


async def test_a_start_that_is_blocked_offers_the_same_actions() -> None:
    link = offering()
    helping(link)
    problem = Problem("Start is blocked", "1 check blocks", "mend it", "blocked")
    link.answer(Start, lambda _: ConsoleError(problem, verdicts.many(NOW - 1)))
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s", "y")
        await sees(pilot, "BLOCKED by 1 of 30", "❯ 1")
        await pilot.press("enter", "y")
        await sees(pilot, "✓ READY", "s starts it")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
