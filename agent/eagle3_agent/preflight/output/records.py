"""Check ``records``: room for the run's own log, events and telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent import paths
from eagle3_agent.preflight.check import Ask, Check, Facts, Probe
from eagle3_agent.preflight.text import number, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .output_facts import nearest, room
from .writing import try_to_write

#: Bytes: less than this and the first minutes can fill it.
LEAST = 64 * 1024**2
#: A day of telemetry of 8 GPUs is some 60 MiB; a log that repeats an error can be a GiB.
COMFORT = 1024**3
_FILES = 64


@dataclass(frozen=True)
class RecordsFacts:
    path: str
    problem: str = ""
    free: int | None = None
    inodes: int | None = None


def _collect(ask: Ask) -> RecordsFacts:
    path = str(paths.state_dir())
    place, problem = nearest(path)
    if not problem:
        _, problem = try_to_write(place, make_folder=place != path)
    free, _, inodes = room(place)
    return RecordsFacts(path, problem, free, inodes)


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    path = show(seen.path, 300)
    if seen.problem:
        return CHECK.verdict(
            "block",
            f"{path} {show(seen.problem, 300)}",
            "A run keeps its log, events and result there.",
            "Make it writable, or start the agent with EAGLE3_HOME on another disk.",
        )
    if seen.free is None:
        return CHECK.verdict("skip", f"the free space at {path} is not known")
    saw = f"{size(seen.free)} free at {path}"
    if seen.inodes is not None and seen.inodes < _FILES:
        saw += f", {number(seen.inodes)} file entries"
        return CHECK.verdict("block", saw, "A run makes a dozen files there.", _TODO)
    if seen.free < LEAST:
        why = "The run's log and events would stop there, and with them every explanation."
        return CHECK.verdict("block", saw, why, _TODO)
    if seen.free < COMFORT:
        why = "A worker that repeats a warning can write as much in hours."
        return CHECK.verdict("warn", saw, why, _TODO)
    return CHECK.verdict("pass", saw)


_TODO = "Free some space on that disk, or start the agent with EAGLE3_HOME on another one."

PROBE = Probe("records", RecordsFacts, _collect, timeout=10.0)

CHECK = Check(
    id="records",
    title="Run records writable",
    needs=(PROBE,),
    judge=judge,
    silence="block",
    silence_why="The agent keeps every run's files there and would hang with it.",
    silence_todo="Look at the mount that holds the agent's state folder (EAGLE3_HOME).",
)
