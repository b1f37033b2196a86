"""Commands of the worker's exercises, and what their reports say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from eagle3_agent.preflight.files import open_regular
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol import ProtocolError, dumps, from_json
from eagle3_agent.protocol.values import Profile

from .keeper import Command, Ended, Keeper

T = TypeVar("T")

_REPORT_LIMIT = 1024 * 1024

#: A line of NCCL with NCCL_DEBUG=WARN is ``host:pid:tid [dev] file:line NCCL WARN text``.
_NCCL_WARNING = "NCCL WARN"


def exercise(
    keeper: Keeper,
    profile: Profile,
    kind: str,
    name: str,
    asked: Mapping[str, Any],
    env: Mapping[str, str],
    timeout: float,
) -> Command:
    """``worker exercise KIND`` under the profile's interpreter."""
    report = str(report_of(keeper, name))
    argv = [profile.host.python, "-m", "eagle3_agent.worker", "exercise", kind, "--report", report]
    return Command(name, argv, env, timeout, dumps(asked).encode("ascii"))


def report_of(keeper: Keeper, name: str) -> Path:
    return keeper.scratch / f"{name}.json"


def read(keeper: Keeper, ended: Ended, facts: type[T]) -> T | None:
    """The report as far as it was written; None where there is none that can be read."""
    try:
        file, _ = open_regular(str(report_of(keeper, ended.name)))
        with file:
            return from_json(facts, json.loads(file.read(_REPORT_LIMIT)))
    except (OSError, ValueError, RecursionError, ProtocolError):
        return None


def how(ended: Ended) -> str:
    """How a command ended that did not end well; empty for one that did."""
    if ended.status is None:
        return f"did not come to its end within {ended.seconds:.0f} s and was ended"
    if ended.status < 0:
        return f"was killed by signal {-ended.status}"
    return f"ended with status {ended.status}" if ended.status else ""


def last_words(ended: Ended, most: int = 1) -> tuple[str, ...]:
    return tuple(show(line, 300) for line in ended.words[-most:])


def nccl_warnings(ended: Iterable[Ended], most: int = 4) -> tuple[str, ...]:
    """What NCCL itself warned of, each text once."""
    found: dict[str, None] = {}
    for one in ended:
        for line in one.words:
            if _NCCL_WARNING in line:
                found.setdefault(show(line[line.index(_NCCL_WARNING) :], 300))
    return tuple(found)[:most]
