"""Profiles to ask about, and one probe run for real, in its own process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3_agent.preflight import runner
from eagle3_agent.preflight.check import Ask, Facts, Probe
from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)

_SECTIONS = ("host", "model", "capture", "data", "output", "engine")


def profile(**changes: Any) -> Profile:
    """A profile whose every key is sound; ``model_path="/x"`` sets ``model.path``."""
    made = Profile(
        name="test",
        host=HostSection(sys.executable),
        model=ModelSection("/models/tiny"),
        capture=CaptureSection((1, 3)),
        data=DataSection("/data/train.jsonl"),
        output=OutputSection("/out/run"),
        engine=EngineSection(),
    )
    for name, value in changes.items():
        section, _, key = name.partition("_")
        assert section in _SECTIONS, name
        made = replace(made, **{section: replace(getattr(made, section), **{key: value})})
    return made


def gather(probe: Probe[Any], asked: Profile, *, deep: bool = False) -> Facts:
    """What this probe finds, run as the preflight runs it."""
    facts, _ = runner.gather((probe,), Ask(asked, deep))
    return facts


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for it; raises AssertionError when it does not come to pass."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Dead, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
