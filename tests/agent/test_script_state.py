"""What is recorded of a user's script when a run of it starts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_agent.protocol.values import EngineSection, Profile
from eagle3_agent.server import script_state
from support.cli import PROFILE
from support.daemon import Home


def profile(script: Path) -> Profile:
    return replace(PROFILE, engine=EngineSection("script", str(script)))


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    file = folder / "02_extract.py"
    file.write_text("print(1)\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return file


async def test_commit_branch_and_changed_files_are_told(script: Path) -> None:
    clean = await script_state.of(profile(script))
    assert clean["git_commit"] == git(script.parent, "rev-parse", "HEAD")
    assert clean["git_branch"] == "main"
    assert clean["git_dirty"] == 0
    assert "git_changes" not in clean
    script.write_text("print(2)\n")
    (script.parent / "new.py").write_text("")
    edited = await script_state.of(profile(script))
    assert edited["git_dirty"] == 2
    assert edited["script_sha256"] != clean["script_sha256"]
    script.write_text("print(3)\n")
    again = await script_state.of(profile(script))
    assert again["git_dirty"] == 2
    assert again["git_changes"] != edited["git_changes"]


async def test_other_engines_have_no_script(script: Path) -> None:
    other = replace(PROFILE, engine=EngineSection("vllm", str(script)))
    assert await script_state.of(other) == {}


async def test_a_folder_without_git_says_so(tmp_path: Path) -> None:
    file = tmp_path / "s.py"
    file.write_text("")
    told = await script_state.of(profile(file))
    assert told["git_problem"] == "not in a git repository"
    assert len(str(told["script_sha256"])) == 64
    assert "git_problem" in await script_state.of(profile(tmp_path / "gone" / "x.py"))


async def test_a_git_that_is_missing_or_hangs_costs_no_start(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    told = await script_state.of(profile(script))
    assert told["git_problem"] == "git is not installed on this host"
    slow = empty / "git"
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(script_state, "LIMIT", 0.3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    told = await script_state.of(profile(script))
    assert loop.time() - began < 5
    assert "git_problem" in told


async def test_nothing_of_the_repository_is_run(script: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external"):
        git(script.parent, "config", name, str(hook))
    script.write_text("print(4)\n")
    told = await script_state.of(profile(script))
    assert told["git_dirty"] == 1
    assert not ran.exists()
    assert not os.path.exists(script.parent / ".git" / "index.lock")


def test_a_start_records_it_with_the_run(home: Home, script: Path) -> None:
    engine = EngineSection("script", str(script))
    wire = home.attach()
    run = wire.start(replace(home.profile(), engine=engine))
    wire.ended(run, "completed")
    recorded = json.loads((home.run(run).path / "run.json").read_bytes())["environment"]
    assert recorded["git_commit"] == git(script.parent, "rev-parse", "HEAD")
    assert recorded["git_dirty"] == 0
