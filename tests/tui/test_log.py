"""The log: any bytes, any length, followed or not, searched."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual.pilot import Pilot

from eagle3_console.app import ConsoleApp
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.log import LogScreen
from support import scenes
from support.tui import make_app, misses, rows, sees, shown, until

SIZE = (100, 30)


async def opened(pilot: Pilot[int]) -> LogScreen:
    await sees(pilot, "RUN 4")
    await pilot.press("l")
    await until(pilot, lambda: isinstance(pilot.app.screen, LogScreen))
    screen = pilot.app.screen
    assert isinstance(screen, LogScreen)
    return screen


def no_escape_is_left(app: ConsoleApp) -> bool:
    return not any(ord(c) < 32 or 127 <= ord(c) < 160 for row in rows(app) for c in row)


async def test_the_end_is_followed_until_the_reader_moves_away() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await sees(pilot, "step 199", "▶ following", "268 lines")
        link.write("0004", "output", b"a new line at the end\n")
        await sees(pilot, "a new line at the end")

        await pilot.press("g")
        await sees(pilot, "Automatically detected platform", "not following")
        link.write("0004", "output", b"one more\n")
        await sees(pilot, "270 lines")
        assert "one more" not in shown(app)

        await pilot.press("F")
        await sees(pilot, "one more", "▶ following")
        for key in ("k", "up", "pageup", "ctrl+b", "home"):
            await pilot.press(key)
            await sees(pilot, "not following")
            link.write("0004", "output", b"and another\n")
            await misses(pilot, "and another")
            await pilot.press("end")
            await sees(pilot, "and another", "▶ following")


async def test_search_jumps_goes_round_and_takes_regular_expressions() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        await sees(pilot, "step 199")
        await pilot.press("slash", *"shards: +50%", "enter")
        await sees(pilot, "32/64")
        first = screen.view.hit
        await pilot.press("n")
        await until(pilot, lambda: screen.view.hit == first, "the only hit again")
        await pilot.press("slash")
        for _ in range(20):
            await pilot.press("backspace")
        await pilot.press(*"step 1[0-9]$", "enter")
        await until(pilot, lambda: screen.view.hit not in (None, first))
        second = screen.view.hit
        await pilot.press("n")
        await until(pilot, lambda: screen.view.hit == (second or 0) + 1)
        await pilot.press("N")
        await until(pilot, lambda: screen.view.hit == second)
        await pilot.press("escape")
        await until(pilot, lambda: screen.view.search is None)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_a_search_without_a_hit_says_so() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await opened(pilot)
        await sees(pilot, "step 199")
        await pilot.press("slash", *"[nowhere", "enter")
        await sees(pilot, "Nothing matches [nowhere")


async def test_the_key_bar_follows_the_search_line() -> None:
    app = make_app(scenes.extracting())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await sees(pilot, "n next hit")
        await pilot.press("slash", "z")
        await until(pilot, lambda: "n next hit" not in shown(app))
        await pilot.press("escape")
        await sees(pilot, "n next hit")


async def test_typing_a_search_is_not_taken_for_keys() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        await pilot.press("slash", *"saqhp")
        assert app.screen is screen
        await sees(pilot, "saqhp")
        await pilot.press("escape")
        await misses(pilot, "saqhp")
        assert app.screen is screen


async def test_hostile_bytes_cannot_reach_the_terminal() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        link.write(
            "0004",
            "output",
            b"\x1b[2J\x1b[31mred\x1b[0m [/model] [bold red]markup\n"
            b"\xff\xfe not utf-8 \x80\n"
            b"title \x1b]0;owned\x07 bell \x07 nul \x00 end\n"
            + "\u202etxt.exe\u202c bidi \u200bzero\n".encode()
            + b"10%|#  \r20%|## \r30%|###",
        )
        await sees(pilot, "red [/model] [bold red]markup", "30%|###", "not utf-8", "txt.exe bidi")
        text = shown(app)
        assert "10%|#" not in text
        assert "owned" not in text
        assert "\u202e" not in text
        assert no_escape_is_left(app)


async def test_five_megabytes_without_a_newline_do_not_hold_it_up() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        await sees(pilot, "step 199")
        link.write("0004", "output", b"x" * 5_000_000 + b"\nafter the giant\n")
        await sees(pilot, "after the giant")
        started = time.perf_counter()
        await pilot.press("g", "G", "right", "left")
        await sees(pilot, "after the giant")
        assert time.perf_counter() - started < 5
        assert len(screen.buffer) == 268 + 6


async def test_more_than_memory_allows_is_dropped_and_said() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        await sees(pilot, "step 199")
        screen.buffer.budget = 200_000
        link.write("0004", "output", b"".join(b"line %d\n" % i for i in range(20_000)))
        await sees(pilot, "line 19999", "older ones dropped from memory")
        assert len(screen.buffer) < 5_000


async def test_a_reader_stays_on_the_same_lines_while_older_ones_are_dropped() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        await sees(pilot, "step 199")
        screen.buffer.budget = 100_000
        link.write("0004", "output", b"".join(b"old %d\n" % i for i in range(1_500)))
        await sees(pilot, "old 1499")
        await pilot.press("k")
        top = screen.view.top_line
        link.write("0004", "output", b"".join(b"new %d\n" % i for i in range(1_200)))
        await until(pilot, lambda: screen.buffer.first > 0)
        await sees(pilot, "older ones dropped")
        assert screen.view.top_line == top


async def test_the_end_of_the_run_ends_the_log() -> None:
    link = scenes.failed()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("l")
        await sees(pilot, "the run has ended", "step 199")


RANKS = (
    b"(Worker_TP0 pid=7) INFO 11-30 12:00:00 [a.py:1] zero loads\n"
    b"(Worker_TP1 pid=8) WARNING 11-30 12:00:00 [a.py:1] one is slow\n"
    b"(Worker_TP1 pid=8) ERROR 11-30 12:00:00 [a.py:1] Traceback (most recent call last):\n"
    b"(Worker_TP1 pid=8) ERROR 11-30 12:00:00 [a.py:1] ValueError: one is wrong\n"
)


async def test_level_and_rank_choose_what_is_shown() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        link.write("0004", "output", RANKS)
        await sees(pilot, "one is wrong", "272 lines")
        await pilot.press("v")
        await sees(pilot, "warnings and errors", "one is slow")
        await pilot.press("v")
        await sees(pilot, "errors only", "one is wrong")
        await misses(pilot, "one is slow")
        link.write("0004", "output", b"ERROR 11-30 12:00:01 [a.py:1] and now this\nINFO not this\n")
        await sees(pilot, "and now this")
        assert "not this" not in shown(app)
        await pilot.press("v")
        await sees(pilot, "274 lines", "zero loads")
        for _ in range(12):
            await pilot.press("t")
            await pilot.pause()
            if "Worker_TP1" in shown(app) and "zero loads" not in shown(app):
                break
        await sees(pilot, "one is slow", "one is wrong", "3 of 274")
        assert "zero loads" not in shown(app)


async def test_errors_are_jumped_to_one_after_the_other() -> None:
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        screen = await opened(pilot)
        quiet = b"".join(b"INFO quiet %d\n" % i for i in range(100))
        link.write("0004", "output", RANKS + quiet + RANKS.replace(b"wrong", b"wrong again"))
        await sees(pilot, "wrong again")
        first = next(n for n in range(268, 280) if b"Traceback" in screen.buffer.raw(n))
        await pilot.press("G", "E")
        await until(pilot, lambda: screen.view.hit == first + 104, "the last one, its first line")
        await pilot.press("E")
        await until(pilot, lambda: screen.view.hit == first, "the one before")
        await pilot.press("e")
        await until(pilot, lambda: screen.view.hit == first + 104)
        await pilot.press("e")
        await sees(pilot, "No error below here.")


async def test_lines_are_copied_and_the_log_is_saved_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path))
    link = scenes.extracting()
    app = make_app(link)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await opened(pilot)
        link.write("0004", "output", b"raw \xff bytes\n")
        await sees(pilot, "bytes")
        await pilot.press("y")
        await sees(pilot, "Copied", "copied.txt")
        assert "bytes" in app.clipboard
        await pilot.press("w")
        await until(pilot, lambda: len(list((tmp_path / "state" / "saved").glob("run*.log"))) == 1)
        (file,) = (tmp_path / "state" / "saved").glob("run*.log")
        assert b"raw \xff bytes" in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "state" / "saved" / "copied.txt").stat().st_mode & 0o777 == 0o600
