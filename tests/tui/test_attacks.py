"""What hurries, floods or surprises the screens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from eagle3_agent.protocol.events import Failure, Progress
from eagle3_agent.protocol.messages import (
    Abort,
    Act,
    Acted,
    Checked,
    Message,
    Probing,
    RunChanged,
    RunPreflight,
    Start,
    Started,
)
from eagle3_agent.protocol.values import (
    Action,
    ErrorInfo,
    Problem,
    Report,
    Samples,
    Verdict,
    Where,
)
from eagle3_console.errors import ConsoleError
from eagle3_console.screens.confirm import ConfirmScreen
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.history import HistoryScreen
from eagle3_console.screens.pages import ErrorsScreen
from eagle3_console.screens.preflight import PreflightScreen
from support import scenes, thirty, verdicts
from support.fakelink import FakeLink
from support.tui import make_app, misses, rows, sees, until

WIDE = (120, 40)
KEYS = ("s", "a", "p", "e", "h", "l", "f", "question_mark", "ctrl+r", "enter", "space", "n", "y",
        "1", "D", "x", "r", "o", "j")  # fmt: skip


class SlowLink(FakeLink):
    """Answers a start or a check only when the test lets it."""

    def __init__(self, of: FakeLink) -> None:
        super().__init__(now=scenes.NOW)
        self.__dict__.update(of.__dict__)
        self.let = asyncio.Event()

    async def ask(
        self,
        message: Message,
        timeout: float | None = 60.0,
        on_progress: Callable[[Probing], None] | None = None,
    ) -> Message:
        if isinstance(message, (Start, RunPreflight)):
            self.asked.append(message)
            await self.let.wait()
            self.asked.remove(message)
        return await super().ask(message, timeout, on_progress)


async def test_s_pressed_twice_starts_once() -> None:
    link = SlowLink(scenes.idle())
    link.answer(Start, lambda _: Started(0, "0001", False, scenes.ready_report()))
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run on this host yet")
        await pilot.press("s", "y", "s", "s")
        await sees(pilot, "A check of this host is going on already.")
        assert len(link.asked_for(Start)) == 1
        link.let.set()
        await sees(pilot, "Run 0001 started")
    assert len(link.asked_for(Start)) == 1


async def test_while_a_start_is_checked_nothing_else_is_asked_for() -> None:
    link = SlowLink(scenes.idle())
    blocked = ConsoleError(Problem("Blocked", "3 checks", "", "blocked"), scenes.blocked_report())
    link.answer(Start, lambda _: blocked)
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run on this host yet")
        await pilot.press("s", "y", "p")
        await sees(pilot, "checking the host before the start")
        await pilot.press("r", "r", "s", "o")
        await pilot.pause()
        assert len(link.asked) == 1
        link.let.set()
        await sees(pilot, "BLOCKED by 3 of 31 checks")
        screens = [type(screen) for screen in app.screen_stack]
        assert screens == [DashboardScreen, PreflightScreen], "one report, one screen"
    assert link.asked_for(RunPreflight) == []
    assert len(link.asked_for(Start)) == 1


async def test_a_start_refused_while_a_question_is_open_leaves_the_question_open() -> None:
    link = SlowLink(scenes.extracting())
    link.answer(Start, lambda _: Started(0, "0005", True))
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("s", "y", "a")
        await sees(pilot, "Abort run 4?")
        link.let.set()
        await sees(pilot, "Run 0005 waits in the queue")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
    assert link.asked_for(Abort) == []


async def test_an_abort_of_a_run_that_ended_meanwhile_is_not_sent() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("a")
        await sees(pilot, "Abort run 4?")
        done = scenes.summary(4, state="completed", ended=scenes.NOW, samples=Samples(10, 10))
        link.push(RunChanged(done))
        await pilot.press("y")
        await sees(pilot, "Run 4 ended by itself meanwhile: completed.")
    assert link.asked_for(Abort) == []


async def test_one_can_leave_from_within_a_question() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("a")
        await sees(pilot, "Abort run 4?")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen), "q is no yes")
        await pilot.press("a")
        await sees(pilot, "Abort run 4?")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not app.is_running or app.return_code is not None)
    assert link.asked_for(Abort) == []


async def test_keys_before_the_first_word_of_the_host_do_no_harm() -> None:
    link = scenes.extracting()
    link.gate.clear()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        for key in KEYS:
            await pilot.press(key)
            await pilot.press("escape")
        assert link.asked == []
        link.gate.set()
        while len(app.screen_stack) > 1:
            await pilot.press("escape")
        await sees(pilot, "RUN 4", "412 / 1 000 samples")
    assert link.asked_for(Start) == []
    assert link.asked_for(Abort) == []


async def test_markup_in_names_stands_as_it_is_in_toasts_and_questions() -> None:
    link = scenes.extracting()
    name = "[/b][red]run[/]"
    link.runs = (replace(scenes.summary(4), profile=name, engine=name, model=name),)
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, name)
        await pilot.press("a")
        await sees(pilot, f"{name}, attempt 4")
        await pilot.press("n")
        failed = replace(link.runs[0], state="failed", ended=scenes.NOW, cause=f"{name} is out")
        link.push(RunChanged(failed))
        await sees(pilot, f"{name} is out; e shows more")
        await pilot.press("h", "enter")
        await sees(pilot, f"RUN 4  {name}")


async def test_a_traceback_of_three_thousand_lines_is_read_to_its_end_and_news_stay_quick() -> None:
    link = scenes.extracting()
    lines = [
        f'  File "/opt/venv/lib/{i}.py", line {i}, in step\n    call_{i}()' for i in range(1500)
    ]
    text = "\n".join(["Traceback (most recent call last):", *lines, "RuntimeError: deep"])
    error = ErrorInfo("RuntimeError", "deep", 0, Where("/opt/venv/lib/1499.py", 1499), text)
    link.happen("0004", Failure(scenes.NOW, error))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4", "RuntimeError: deep")
        await pilot.press("e")
        await sees(pilot, "Traceback of the run's own process, whole", "call_3()")
        screen = app.screen
        assert isinstance(screen, ErrorsScreen)
        began = time.perf_counter()
        for i in range(20):
            step = Progress(scenes.NOW, 413 + i, 1000, 0, 1, 1)
            link.happen("0004", step)
            await pilot.pause()
        took = time.perf_counter() - began
        await pilot.press("G")
        await sees(pilot, "call_1499()", "RuntimeError: deep")
        assert took < 10, f"20 news took {took:.1f} s"


async def test_news_among_ten_thousand_runs_stay_quick() -> None:
    link = scenes.extracting()
    link.runs = tuple(scenes.summary(i, state="completed") for i in range(1, 10_000))
    link.runs += (scenes.summary(10_000),)
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 10000")
        await pilot.press("h")
        await sees(pilot, "10 000 runs")
        assert isinstance(app.screen, HistoryScreen)
        began = time.perf_counter()
        for done in range(20):
            app._on_push(RunChanged(scenes.summary(10_000, samples=Samples(1000, done))))
            await pilot.pause()
        took = time.perf_counter() - began
        await sees(pilot, "19 / 1 000")
        assert took < 10, f"20 news took {took:.1f} s"


async def test_a_storm_of_resizes_ends_in_a_whole_screen() -> None:
    link = scenes.extracting()
    link.answer(RunPreflight, lambda _: Checked(0, scenes.blocked_report()))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        for key in ("", "h", "e", "l", "p"):
            if key:
                await pilot.press(key)
            for step in range(12):
                await pilot.resize_terminal(20 + 17 * (step * 7 % 12), 5 + 5 * (step * 5 % 12))
            await pilot.resize_terminal(*WIDE)
            await pilot.pause()
            assert [len(row) for row in rows(app)] == [WIDE[0]] * WIDE[1]
            await pilot.press("escape")
        await sees(pilot, "RUN 4", "412 / 1 000 samples", "help")
        await misses(pilot, "Traceback")


async def test_markup_in_an_action_stands_as_it_is_wherever_it_is_shown() -> None:
    link = scenes.idle()
    name = "[/b][red]End[/] [@click=app.quit]it[/]"
    action = Action("x", "terminate", name, (name,))
    bad = Verdict("gpu-clean", name, "block", name, name, name, actions=(action,))
    link.answer(RunPreflight, lambda _: Checked(0, Report((bad,), 1.0, scenes.NOW)))
    link.answer(Act, lambda _: Acted(0, (name,), bad, False))
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, f"❯ 1  {name}")
        await pilot.press("1")
        await sees(pilot, f"{name}?", f"• {name}")
        await pilot.press("y")
        await sees(pilot, f"It did not help: {name}", f"    {name}")


async def test_a_thousand_actions_and_a_flood_of_progress_stay_quick() -> None:
    link = scenes.idle()
    acts = tuple(Action(f"end-{i}", "terminate", f"End {i}", ("x",) * 100) for i in range(1000))
    bad = Verdict("gpu-clean", "GPUs", "block", "held", actions=acts)
    link.answer(RunPreflight, lambda _: Checked(0, Report((bad,), 1.0, scenes.NOW)))
    link.progress = [Probing(0, i, 2000, ("a", "b")) for i in range(2000)]
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        began = time.perf_counter()
        await pilot.press("p")
        await sees(pilot, "❯ 1  End 0")
        for _ in range(20):
            await pilot.press("j")
        await sees(pilot, "❯    End 20")
        assert time.perf_counter() - began < 20


async def test_an_answer_to_a_question_that_is_out_of_date_is_not_sent_twice() -> None:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.many(scenes.NOW)))
    link.answer(Act, lambda _: Acted(0, ("done",), thirty.CLEAN, True))
    link.held[Act] = asyncio.Event()
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("1", "y", "y", "1", "y", "enter", "y")
        await pilot.pause()
        assert len(link.asked_for(Act)) == 1
        link.held[Act].set()
        await sees(pilot, "It helped")
        assert len(link.asked_for(Act)) == 1


async def test_a_link_lost_during_an_action_says_that_nothing_is_known() -> None:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, verdicts.many(scenes.NOW)))
    why = Problem("The link was lost", "Whether it was done is not known.", "Check.", "connect")
    link.answer(Act, lambda _: ConsoleError(why))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "❯ 1")
        await pilot.press("1", "y")
        await sees(pilot, "✗ Not done: Stop vllm-router", "Whether it was done is not known.")
        assert app.state.checks.since is None
