"""Runs of engine ``script`` for tests: a script in a folder of its own, beside its data."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3_agent.protocol.events import Note, Stage
from eagle3_agent.protocol.values import EngineSection, Profile
from eagle3_agent.runs import RunFolder, write_value

from . import tiny

SCRIPTS = Path(__file__).parents[1] / "worker" / "scripts"

LAYERS = (1, 3, 4)


def place(folder: Path) -> Path:
    """03_extract.py and what it imports, copied to where a user would have them."""
    folder.mkdir()
    for name in ("03_extract.py", "beside.py"):
        shutil.copy(SCRIPTS / name, folder / name)
    return folder / "03_extract.py"


def with_script(profile: Profile, script: Path | str, args: Sequence[str] = ()) -> Profile:
    return replace(profile, engine=EngineSection("script", str(script), tuple(args)))


def make_run(folder: Path, profile: Profile) -> RunFolder:
    run = tiny.make_run(folder, profile)
    write_value(run.path / "run.json", replace(run.record(), engine="script"))
    return run


def usual_args(profile: Profile) -> list[str]:
    return [
        "--target-model-path",
        profile.model.path,
        "--train-data-path",
        profile.data.path,
        "--output-dir",
        profile.output.dir,
    ]


def stages(run: RunFolder) -> list[str]:
    """``name`` of each stage that was done, ``name!`` of one that failed."""
    found = [e for e in tiny.events(run) if isinstance(e, Stage) and e.status != "start"]
    return [e.name + ("!" if e.status == "failed" else "") for e in found]


def warnings(run: RunFolder) -> list[str]:
    return [e.text for e in tiny.events(run) if isinstance(e, Note) and e.level == "warning"]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Fails when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)
