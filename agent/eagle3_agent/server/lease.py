"""Where the daemon's lock, lease and log are: what ``attach`` needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3_agent import paths


@dataclass(frozen=True)
class Lease:
    """``agent.json``: who holds the lock, and from which archive it runs."""

    pid: int
    archive: str
    started: float


def lock_path() -> Path:
    return paths.agent_dir() / "agent.lock"


def lease_path() -> Path:
    return paths.agent_dir() / "agent.json"


def log_path() -> Path:
    return paths.agent_dir() / "agent.log"
