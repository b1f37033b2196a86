"""Check ``disk-throughput``: what the output's disk takes from several writers, and the hours.

2 GB of files of the run's own size, synced and renamed, in the output folder's filesystem.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from eagle3_agent import archive, processes
from eagle3_agent.preflight.check import Ask, Check, Facts, Probe, known, only_deep
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.output.disk import predict, still_to_write
from eagle3_agent.preflight.output.output_facts import PROBE as OUTPUT
from eagle3_agent.preflight.output.output_facts import nearest, room
from eagle3_agent.preflight.output.speed import slow
from eagle3_agent.preflight.text import hours, plural, show, size
from eagle3_agent.processes import Identity
from eagle3_agent.protocol import dumps
from eagle3_agent.protocol.values import Profile, Verdict

from . import exercise, steps
from .disk_writers import Asked, Wrote
from .keeper import Command, Keeper

#: Bytes to write; a quarter of the room where that is less.
TOTAL = 2_000_000_000

#: Seconds after which no file is begun, and after which the writers are ended.
WRITING = 25.0
TIMEOUT = 45.0

#: Less than this says nothing: it fits in a disk's own memory.
_LEAST = 64 << 20

#: Bytes of a file: predicted where it can be, within these.
_SMALLEST, _LARGEST, _UNKNOWN = 64 << 10, 256 << 20, 16 << 20

_PREFIX = ".eagle3-exercise-"

_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eagle3_agent.preflight.deep import disk_writers; disk_writers.main(sys.argv[2])"
)


@dataclass(frozen=True)
class DiskFacts:
    refused: str = ""
    place: str = ""
    """The output folder, or its nearest parent that exists."""
    threads: int = 0
    file: int = 0
    """Bytes of a file."""
    file_from: str = ""
    wrote: Wrote = field(default_factory=Wrote)
    ended: str = ""


def perform(keeper: Keeper, ask: Ask) -> DiskFacts:
    path = ask.profile.output.dir
    place, problem = nearest(path) if os.path.isabs(path) else (path, "is not a whole path")
    if problem:
        return DiskFacts(f"{path} {problem}")
    remove_stale(place)
    free = room(place)[0]
    total = min(TOTAL, (free or 0) // 4)
    if total < _LEAST:
        known_free = "unknown" if free is None else size(free)
        return DiskFacts(f"the room at {place} is {known_free}: too little to try", place)
    size_, told = sample_size(ask)
    threads = ask.profile.output.writer_threads or writer_threads()
    folder = Path(place) / own_name()
    keeper.folders.append(folder)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        return DiskFacts(f"no folder can be made in {place}: {error.strerror}", place)
    asked = Asked(str(folder), total, min(size_, total // threads), threads, WRITING)
    report = str(steps.report_of(keeper, "disk"))
    argv = [sys.executable, "-I", "-c", _CHILD, str(archive.ROOT), report]
    command = Command("disk", argv, os.environ, TIMEOUT, dumps(asked).encode("ascii"))
    (ended,) = keeper.run([command])
    wrote = steps.read(keeper, ended, Wrote) or Wrote(problem=" ".join(steps.last_words(ended)))
    return DiskFacts("", place, threads, asked.file, told, wrote, steps.how(ended))


def sample_size(ask: Ask) -> tuple[int, str]:
    """Bytes of the run's mean sample file, and where the figure comes from."""
    quick = replace(ask, deep=False)
    try:
        facts = known((DATA, DATA.collect(quick)), (MODEL, MODEL.collect(quick)))
        plan = predict(facts, ask.profile)
    except Exception:  # whatever they stumble over is their own checks' to tell
        plan = None
    if plan is None or plan.files < 1:
        return _UNKNOWN, "its samples' size is not known"
    mean = plan.bytes // plan.files
    return min(_LARGEST, max(_SMALLEST, mean)), "the size of its mean sample"


def writer_threads() -> int:
    """As many as a run takes where its profile says nothing: half the cores, 2 to 16."""
    return min(16, max(2, len(os.sched_getaffinity(0)) // 2))


# ------------------------------------------------------------------ the folder


def own_name() -> str:
    """Names its process, so that a later exercise can tell that nobody uses it any more."""
    me = processes.identity(os.getpid())
    return f"{_PREFIX}{os.uname().nodename}-{os.getpid()}-{me.start_time if me else 0}"


def remove_stale(place: str) -> None:
    """Folders of this user that exercises on this host left when they could not clean up."""
    mine = f"{_PREFIX}{os.uname().nodename}-"
    try:
        with os.scandir(place) as entries:
            names = [e.path for e in entries if e.name.startswith(mine)]
    except OSError:
        return
    for path in names:
        pid, _, start = path.rpartition(mine)[2].partition("-")
        if not (pid.isdecimal() and start.isdecimal()):
            continue
        info = os.lstat(path)
        ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()
        if ours and not processes.alive(Identity(int(pid[:9]), int(start[:18]))):
            shutil.rmtree(path, ignore_errors=True)


# ------------------------------------------------------------------ the verdict


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.refused:
        return CHECK.verdict("skip", f"not measured: {show(seen.refused, 300)}")
    wrote = seen.wrote
    if wrote.problem or seen.ended:
        why = f": {show(wrote.problem, 200)}" if wrote.problem else ""
        return CHECK.verdict(
            "block" if wrote.problem and not seen.ended else "warn",
            f"writing at {show(seen.place, 200)} {seen.ended or 'failed'}{why}; "
            f"{size(wrote.bytes)} were durable",
            "Samples are written the same way.",
            "Look at the mount that holds the output folder (dmesg, df), or choose another "
            "output.dir.",
        )
    if not wrote.files or wrote.seconds <= 0:
        return CHECK.verdict("skip", "not measured: no file was written in its time")
    return _judge_rate(facts, profile, seen, wrote.bytes / wrote.seconds)


def _judge_rate(facts: Facts, profile: Profile, seen: DiskFacts, rate: float) -> Verdict:
    wrote = seen.wrote
    saw = (
        f"{rate / 1e6:.0f} MB/s durable: {plural(wrote.files, 'file')} of {size(seen.file)} "
        f"({seen.file_from}) by {plural(seen.threads, 'writer')} in {wrote.seconds:.1f} s, the "
        f"slowest {wrote.slowest:.2f} s"
    )
    rest = still_to_write(facts, profile)
    if rest is not None:
        saw += f"; {size(rest)} to write take {hours(rest / rate / 3600)} at that"
    why = slow(rest, rate)
    todo = "Choose an output.dir on a faster disk, or fewer layers or samples."
    return CHECK.verdict("warn", saw, why, todo) if why else CHECK.verdict("pass", saw)


def _collect(ask: Ask) -> DiskFacts:
    return exercise.collect("disk_throughput", DiskFacts, ask)


PROBE = Probe("disk-throughput", DiskFacts, _collect, timeout=TIMEOUT + 60.0 + exercise.CLEANING)

CHECK = Check(
    id="disk-throughput",
    title="Output disk fast under load",
    needs=(PROBE,),
    wants=(DATA, MODEL, OUTPUT),
    judge=judge,
    silence="warn",
    silence_why="A disk that does not write 2 GB in this time will hold the run up, or hang it.",
    silence_todo="Look at the mount that holds the output folder (dmesg, iostat -x 1).",
    applies=only_deep,
)
