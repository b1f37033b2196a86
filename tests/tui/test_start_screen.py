"""Choosing, editing, repeating and resuming: what the next run is, and that it is shown first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from eagle3_agent.protocol.messages import (
    Checked,
    Message,
    Resume,
    RunChanged,
    RunPreflight,
    Start,
    Started,
)
from eagle3_agent.protocol.values import HostSection, Problem, Samples
from eagle3_console import profile as profiles
from eagle3_console.app import ConsoleApp
from eagle3_console.errors import ConsoleError
from eagle3_console.screens.confirm import ConfirmScreen
from eagle3_console.screens.dashboard import DashboardScreen
from eagle3_console.screens.naming import NameScreen
from eagle3_console.screens.profile_editor import ProfileEditor
from eagle3_console.screens.profiles import ProfileScreen
from eagle3_console.screens.start import StartScreen
from support import scenes
from support.fakelink import FakeLink
from support.tui import Clock, make_app, misses, rows, sees, shown, until

KIMI = Path(__file__).parents[2] / "profiles" / "kimi-k2.5.toml"
SIZES = [(80, 24), (120, 40), (200, 60)]
WIDE = (120, 40)
Compare = Callable[..., bool]
#: A field with a value that cannot be, of a profile that differs from the loaded one.
FIELD = ("r", "j", "j", "j", "enter", "x")
PICTURES = {"again": FIELD, "start": ("s",), "resume": ("R",)}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own profile ``night``, and a broken one; the console's other files elsewhere."""
    home = tmp_path / "home"
    folder = home / "config" / "profiles"
    folder.mkdir(parents=True)
    monkeypatch.setenv("EAGLE3_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    path = folder / "night.toml"
    path.write_text(KIMI.read_text())
    text = KIMI.read_text().replace("seq_length =", "seq_len =")
    (folder / "wrong.toml").write_text(text)
    return path


def loaded(link: FakeLink, path: Path, *, read_only: bool = False) -> ConsoleApp:
    """The console with a profile that lies in a file."""
    return ConsoleApp(link, "root@gpu-01", profiles.load(path), path, read_only, now=Clock())


def starts(link: FakeLink, kind: type = Start) -> None:
    def reply(_: Message) -> Message:
        run = scenes.summary(9, started=scenes.NOW, samples=Samples(None), stage="load")
        link.push(RunChanged(run))
        return Started(0, run.run, False, scenes.ready_report())

    link.answer(kind, reply)


def line_with(app: ConsoleApp, text: str) -> str:
    return next((row for row in rows(app) if text in row), "")


# ------------------------------------------------------------------------- what would run


@pytest.mark.parametrize("size", SIZES)
async def test_a_start_shows_what_it_runs_and_no_is_the_default(size: tuple[int, int]) -> None:
    link = scenes.idle()
    starts(link)
    secret = HostSection("/root/venv/bin/python", {"HF_TOKEN": "hf_abcdefghijklmnopqrstuv"})
    app = make_app(link, profile=replace(scenes.PROFILE, host=secret))
    async with app.run_test(size=size) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s")
        await sees(pilot, "Start this on root@gpu-01?", "/shared/kimi-k2.5-int4", "2 30 58 60")
        assert isinstance(app.screen, StartScreen)
        assert app.focused is not None
        assert app.focused.id == "no"
        if size[1] > 24:
            await sees(pilot, "8 of 8 × NVIDIA RTX PRO 6000", "HF_TOKEN=••••••", "1 000 samples")
            await sees(pilot, scenes.PROFILE.output.dir, "not checked yet")
        assert "hf_abc" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        assert link.asked_for(Start) == []
        await pilot.press("s", "y")
        await sees(pilot, "RUN 9")
    assert len(link.asked_for(Start)) == 1


async def test_what_a_preflight_foretold_stands_beside_the_question() -> None:
    link = scenes.idle()
    report = scenes.ready_report()
    link.answer(RunPreflight, lambda _: Checked(0, report))
    app = make_app(link)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("p")
        await sees(pilot, "READY")
        await pilot.press("escape", "s")
        disk = next(v for v in report.verdicts if v.check == "disk")
        await sees(pilot, "disk   ", disk.saw[:30], "the start checks again")


async def test_hostile_values_of_a_profile_cannot_move_the_cursor() -> None:
    model = replace(scenes.PROFILE.model, path="/m/\x1b[2J[red]x\u202e")
    app = make_app(scenes.idle(), profile=replace(scenes.PROFILE, model=model))
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("s")
        await sees(pilot, "/m/[red]x")
        await pilot.press("n", "f")
        await sees(pilot, "PROFILE", "/m/[red]x")
        assert "\x1b" not in shown(app)


# ------------------------------------------------------------------------- choosing


@pytest.mark.parametrize("size", SIZES)
async def test_f_lists_the_profiles_and_names_what_is_wrong(
    size: tuple[int, int], mine: Path
) -> None:
    app = loaded(scenes.idle(), KIMI)
    async with app.run_test(size=size) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f")
        await sees(pilot, "PROFILES", "night", "wrong", "line 27, data.seq_len: no such key")
        assert "●" in line_with(app, " kimi-k2.5 ")
        await pilot.press("g")
        await sees(pilot, "⏎ loads it")
        await pilot.press("enter")
        await sees(pilot, "loaded: s starts it", str(mine)[-30:])
        assert app.state.profile_path == str(mine)
        await pilot.press("j", "enter")
        await sees(pilot, "did you mean data.seq_length?")
        assert app.state.profile_path == str(mine), "a broken one is not loaded"


# ------------------------------------------------------------------------- editing


@pytest.mark.parametrize("size", SIZES)
async def test_a_value_is_judged_as_it_is_typed_and_saved_with_its_comments(
    size: tuple[int, int], mine: Path
) -> None:
    app = loaded(scenes.idle(), mine)
    async with app.run_test(size=size, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e")
        await sees(pilot, "EDIT  night", "as in the file")
        assert isinstance(app.screen, ProfileEditor)
        await pilot.press("slash", *"max_samples", "enter", "enter")
        await sees(pilot, "⏎ takes it")
        await pilot.press("home", *"0", "delete", "delete", "delete", "delete")
        await sees(pilot, "✗ 0 is out of range", '▸ write a whole number or "all" from 1')
        await pilot.press("enter")
        await sees(pilot, "✗ 0 is out of range")
        await pilot.press("backspace", *"10", "enter")
        await sees(pilot, "● 1 changed", "was 1000")
        await pilot.press("escape")
        await sees(pilot, "model", "tensor_parallel_size")
        await pilot.press("w")
        await sees(pilot, "Saved and loaded", "as in the file")
    assert mine.read_text() == KIMI.read_text().replace("max_samples = 1000", "max_samples = 10")
    assert app.state.profile is not None
    assert app.state.profile.data.max_samples == 10
    assert app.state.overrides == {}


async def test_used_without_saving_it_is_an_override_that_the_start_shows(mine: Path) -> None:
    link = scenes.idle()
    starts(link)
    app = loaded(link, mine)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e", "slash", *"dtype", "enter", "enter")
        await sees(pilot, "float32", "was auto")
        await pilot.press("escape", "t")
        await sees(pilot, "for this session: model.dtype=float32")
        await pilot.press("s")
        await sees(pilot, "model.dtype=float32   (not in the file)", "dtype float32")
        await pilot.press("y")
        await sees(pilot, "RUN 9")
    (request,) = link.asked_for(Start)
    assert isinstance(request, Start)
    assert request.profile.model.dtype == "float32"
    assert mine.read_text() == KIMI.read_text()


async def test_escape_asks_before_changes_are_lost_and_other_screens_keep_them(mine: Path) -> None:
    app = loaded(scenes.idle(), mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e", "slash", *"too_long", "enter", "enter")
        await sees(pilot, "● 1 changed")
        await pilot.press("escape", "f", "e")
        await sees(pilot, "● 1 changed", "skip")
        await pilot.press("escape")
        await sees(pilot, "Throw away the change?", "data.too_long: skip")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ProfileEditor))
        await pilot.press("escape", "y")
        await until(pilot, lambda: isinstance(app.screen, ProfileScreen))
        await pilot.press("e")
        await sees(pilot, "EDIT  night", "as in the file")


async def test_leaving_the_console_asks_for_unsaved_changes(mine: Path) -> None:
    app = loaded(scenes.idle(), mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e", "slash", *"too_long", "enter", "enter", "escape", "q")
        await sees(pilot, "Leave unsaved changes?", "night.toml")
        await pilot.press("n", "q", "y")
        await until(pilot, lambda: app.return_code == 0 or not app.is_running)
    assert mine.read_text() == KIMI.read_text()


async def test_a_profile_with_problems_cannot_be_used_and_keys_can_be_dropped(mine: Path) -> None:
    wrong = mine.with_name("wrong.toml")
    app = loaded(scenes.idle(), mine)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "g", "j", "e")
        await sees(pilot, "EDIT  wrong", "✗ 1 wrong")
        await pilot.press("t")
        await sees(pilot, "data.seq_len: no such key", "n goes to each")
        await pilot.press("n")
        await sees(pilot, "data.seq_len: no setting; d removes it")
        await pilot.press("d")
        await misses(pilot, "✗ 1 wrong")
        await pilot.press("w")
        await sees(pilot, "Saved and loaded")
    assert "seq_len" not in wrong.read_text()


async def test_a_file_that_changed_meanwhile_is_noticed(mine: Path) -> None:
    app = loaded(scenes.idle(), mine)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e", "slash", *"too_long", "enter", "enter", "escape")
        await sees(pilot, "● 1 changed")
        mine.write_text(mine.read_text().replace("max_samples = 1000", "max_samples = 77"))
        theirs = mine.read_text()
        await pilot.press("w")
        await sees(pilot, "The file has changed", "Nothing is written yet")
        assert mine.read_text() == theirs
        await pilot.press("y")
        await sees(pilot, "77", "● 1 changed")
        await pilot.press("w")
        await sees(pilot, "Saved and loaded")
    assert "max_samples = 77" in mine.read_text()
    assert 'too_long = "skip"' in mine.read_text()


async def test_a_shipped_profile_is_saved_as_a_copy(mine: Path) -> None:
    before = KIMI.read_text()
    app = loaded(scenes.idle(), KIMI)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "No run")
        await pilot.press("f", "e", "slash", *"too_long", "enter", "enter", "escape", "w")
        await sees(pilot, "It came with the console", "⏎ writes")
        assert isinstance(app.screen, NameScreen)
        await pilot.press("ctrl+u", *"night")
        await sees(pilot, "is there already")
        await pilot.press("enter", *"-2", "enter")
        await sees(pilot, "Saved and loaded")
        assert app.state.profile_path == str(mine.with_name("night-2.toml"))
    assert KIMI.read_text() == before
    assert 'too_long = "skip"' in mine.with_name("night-2.toml").read_text()


# ------------------------------------------------------------------------- an earlier run


async def test_again_shows_what_differs_and_starts_with_changes(mine: Path) -> None:
    link = scenes.failed()
    starts(link)
    resolved = replace(profiles.load(mine), data=replace(scenes.PROFILE.data, max_samples=10))
    run = link.runs[-1]
    link.details[run.run] = scenes.detail(run, resolved=resolved)
    app = loaded(link, mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("r")
        await sees(pilot, "EDIT  night", "as run 0003 had it", "● 1 changed", "was 1000")
        await pilot.press("slash", *"too_long", "enter", "enter", "s")
        await sees(pilot, "data.max_samples=10", "data.too_long=skip", "run 0003")
        await pilot.press("y")
        await sees(pilot, "RUN 9")
    (request,) = link.asked_for(Start)
    assert isinstance(request, Start)
    assert request.profile.data.max_samples == 10
    assert request.profile.data.too_long == "skip"


async def test_again_of_another_profile_says_what_it_is_compared_with(mine: Path) -> None:
    link = scenes.failed()
    app = loaded(link, mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("h", "enter", "r")
        await sees(pilot, "EDIT  kimi-k2.5-int4", "no file yet", "compared with the loaded night")
        await pilot.press("s")
        await sees(pilot, "kimi-k2.5-int4, from run 0003")


async def test_resume_shows_what_is_kept_and_asks(mine: Path) -> None:
    link = scenes.failed()
    starts(link, Resume)
    runs = tuple(
        replace(r, samples=Samples(1000, 412, 3)) if r.number == 3 else r for r in link.runs
    )
    link.runs = runs
    link.details = {r.run: scenes.detail(r) for r in runs}
    app = loaded(link, mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("R")
        await sees(pilot, "Resume run 3 on root@gpu-01?", "412 / 1 000 samples", "3 skipped")
        await sees(pilot, "in the place of the loaded night")
        await pilot.press("enter")
        await misses(pilot, "Resume run 3")
        assert link.asked_for(Resume) == []
        await pilot.press("R", "y")
        await sees(pilot, "RUN 9")
    assert link.asked_for(Resume) == [Resume(0, "0003")]
    assert app.state.profile == scenes.PROFILE


async def test_a_blocked_resume_started_over_is_still_a_resume(mine: Path) -> None:
    link = scenes.failed()
    problem = Problem("Start is blocked", "2 checks block", "mend them", "blocked")
    link.answer(Resume, lambda _: ConsoleError(problem, scenes.blocked_report()))
    app = loaded(link, mine)
    async with app.run_test(size=WIDE) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("R", "y")
        await sees(pilot, "BLOCKED by")
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: len(link.asked_for(Resume)) == 2)
    again = link.asked_for(Resume)[-1]
    assert isinstance(again, Resume)
    assert again.run == "0003"
    assert again.force
    assert link.asked_for(Start) == []


async def test_what_cannot_be_resumed_is_said(mine: Path) -> None:
    app = loaded(scenes.extracting(), mine)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 4")
        await pilot.press("R")
        await sees(pilot, "Run 4 has not ended.")


async def test_read_only_edits_and_says_why_it_does_not_start(mine: Path) -> None:
    link = scenes.failed()
    app = loaded(link, mine, read_only=True)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await sees(pilot, "RUN 3")
        await pilot.press("r")
        await sees(pilot, "EDIT")
        await pilot.press("s")
        await sees(pilot, "--read-only")
    assert link.asked_for(Start) == []


@pytest.mark.parametrize("theme", ["eagle-dark", "eagle-light"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PICTURES)
def test_picture(name: str, size: tuple[int, int], theme: str, snap_compare: Compare) -> None:
    link = scenes.failed()
    other = replace(scenes.PROFILE.data, max_samples=10, too_long="skip")
    app = make_app(link, profile=replace(scenes.PROFILE, name="night", data=other))
    app.theme = theme

    async def before(pilot: Pilot[Any]) -> None:
        await sees(pilot, "RUN 3")
        await until(pilot, lambda: app.state.detail is not None and bool(app.state.tail))
        for key in PICTURES[name]:
            await pilot.press(key)
        await until(pilot, lambda: not isinstance(app.screen, DashboardScreen))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)
