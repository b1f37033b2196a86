"""Check ``disk-speed``: what the output's disk really takes in, and the hours that this means."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Check, Facts, Probe
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.text import hours, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .disk import still_to_write
from .output_facts import PROBE as OUTPUT
from .output_facts import nearest

#: Seconds of writing after which the probe has seen enough.
_ENOUGH = 0.6
_PART = 2 * 1024 * 1024
#: A cache of the disk itself swallows less than this without showing its speed.
_MOST = 128 * 1024 * 1024

#: Hours of writing alone from which on it is worth a look: the run cannot be faster than its disk.
LONG = 4.0
#: Bytes a second below which any run of size waits for the disk (a hard disk writes 100 to 250).
SLOW = 50e6


@dataclass(frozen=True)
class SpeedFacts:
    bytes: int = 0
    """Written, and on the disk when the clock was stopped."""
    seconds: float = 0.0
    problem: str = ""

    @property
    def rate(self) -> float:
        """Bytes a second, synced."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


def _collect(ask: Ask) -> SpeedFacts:
    path = ask.profile.output.dir
    place, problem = nearest(path) if os.path.isabs(path) else (path, "is not a whole path")
    if problem:
        return SpeedFacts(problem=problem)
    try:
        fd = _nameless(place)
    except OSError as error:
        return SpeedFacts(problem=error.strerror or str(error))
    try:
        return _measure(fd)
    except OSError as error:
        return SpeedFacts(problem=error.strerror or str(error))
    finally:
        os.close(fd)


def _nameless(folder: str) -> int:
    """A new file without a name: it is gone however this process ends.  Raises OSError."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    except OSError:  # network filesystems know no such files
        path = os.path.join(folder, f".eagle3-preflight-{os.getpid()}.speed")
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
        return fd


def _measure(fd: int) -> SpeedFacts:
    """Parts of 2 MiB, each synced, for 0.6 s or 128 MiB.  Raises OSError."""
    part = os.urandom(_PART)  # what no filesystem can compress or find again
    done, began = 0, time.monotonic()
    while True:
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]
        os.fdatasync(fd)
        done += _PART
        seconds = time.monotonic() - began
        if seconds >= _ENOUGH or done >= _MOST:
            return SpeedFacts(done, seconds)
        part = part[-4096:] + part[:-4096]


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.problem or seen.rate <= 0:
        return CHECK.verdict("skip", f"not measured: {show(seen.problem, 200) or 'no time passed'}")
    saw = f"{size(seen.rate)}/s by one writer, synced ({size(seen.bytes)} in {seen.seconds:.1f} s)"
    rest = still_to_write(facts, profile)
    if rest is not None:
        saw += f"; at that, {size(rest)} take {hours(rest / seen.rate / 3600)}"
    why = slow(rest, seen.rate)
    return CHECK.verdict("warn", saw, why, _TODO) if why else CHECK.verdict("pass", saw)


def slow(rest: int | None, rate: float) -> str:
    """Why ``rate`` (bytes a second) is too slow for the bytes that are left; empty if it is not."""
    if rest is None:
        return "The GPUs would wait for this disk." if rate < SLOW else ""
    if rest / rate / 3600 < LONG:
        return ""
    return "The run cannot end sooner than its samples are on the disk: the GPUs would wait."


_TODO = (
    "Several writers may get more (a deep preflight measures it); else choose an output.dir on a "
    "faster disk, or fewer layers or samples."
)

#: Its parts are synced, so even a disk of 1 MB/s answers in time.
PROBE = Probe("disk-speed", SpeedFacts, _collect, timeout=12.0)

CHECK = Check(
    id="disk-speed",
    title="Output disk fast enough",
    needs=(PROBE,),
    wants=(DATA, MODEL, OUTPUT),
    judge=judge,
    silence="warn",
    silence_why="A disk that does not sync 2 MiB in this time will hold the run up, or hang it.",
    silence_todo="Look at the mount that holds the output folder (dmesg, iostat -x 1).",
)
