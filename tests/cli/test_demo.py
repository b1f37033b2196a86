"""The demo: its setup in parts, what a failing pip shows, and the whole job headless."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from eagle3_console import demo, profile
from eagle3_console.errors import ConsoleError, ExitCode
from support.local import Local


@pytest.fixture
def home(_own_home: Path) -> Path:
    return _own_home


def _files(home: Path) -> demo.DemoFiles:
    return demo.DemoFiles(home / "cache" / "demo")


def test_a_failing_pip_shows_its_last_words_and_leaves_nothing_ready(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    # makes an environment whose pip cannot reach anything
    fake.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"\n'
        "printf '#!/bin/sh\\necho no route to host; exit 1\\n' > \"$3/bin/python\"\n"
        'chmod +x "$3/bin/python"\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(fake))
    said: list[str] = []
    with pytest.raises(ConsoleError) as caught:
        demo.prepare(said.append)
    problem = caught.value.problem
    assert problem.title == "The demo's setup stopped at: torch, CPU build"
    assert "no route to host" in problem.happened
    made = _files(home)
    assert str(made.log) in problem.todo
    assert made.log.read_text().count("no route to host") == 2  # both builds were tried
    assert not (made.root / "env" / ".ready").exists()
    assert not made.profile.exists()


def test_a_folder_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EAGLE3_HOME", str(tmp_path / "file"))
    with pytest.raises(ConsoleError, match="could not be set up"):
        demo.prepare(print)


def test_each_demo_writes_to_a_folder_of_its_own(home: Path) -> None:
    made = _files(home)
    made.root.mkdir(parents=True)
    demo.write_profile(made)
    assert profile.load(made.profile).output.dir.endswith("hidden_states/run-1")
    (made.outputs / "run-1").mkdir(parents=True)
    demo.write_profile(made)
    resolved = profile.load(made.profile)
    assert resolved.output.dir.endswith("hidden_states/run-2")
    assert resolved.capture.layers == (2, 15, 27, 29)
    assert resolved.engine.name == "transformers"


def test_a_path_with_odd_characters_survives_the_profile(tmp_path: Path) -> None:
    made = demo.DemoFiles(tmp_path / 'a "quoted" \\ ü 😀')
    made.root.mkdir()
    demo.write_profile(made)
    assert profile.load(made.profile).host.python == str(made.python)


@pytest.mark.worker
def test_the_demo_does_the_whole_job(local: Local, made_demo: demo.DemoFiles) -> None:
    ours = _files(local.home)
    ours.root.mkdir(parents=True)
    for name in ("env", "model"):
        os.symlink(made_demo.root / name, ours.root / name)
    (ours.root / "model.ready").write_bytes((made_demo.root / "model.ready").read_bytes())
    ran = local.run("demo", "--json")
    assert ran.code == ExitCode.DONE, ran.err
    run = ran.object
    assert run["state"] == "completed"
    assert run["samples"]["done"] == run["samples"]["total"] >= 56
    assert run["tokens_per_second"] > 0
    assert run["verify"]["ok"] is True
    assert run["output_dir"] == str(ours.outputs / "run-1")
    for word in ("✓ preflight", "✓ load", "✓ extract", "tok/s", "ETA"):
        assert word in ran.err
    again = local.run("demo", "--prepare-only", "--json")
    assert again.object["profile"] == str(ours.profile)
    assert profile.load(ours.profile).output.dir == str(ours.outputs / "run-2")
