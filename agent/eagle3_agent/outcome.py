"""What a run's end is called, from its events and how its worker ended; pure but for two reads."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .processes import printable
from .protocol.events import Event, Failure, Stage
from .protocol.fold import Standing, fold
from .protocol.values import ErrorInfo, RunState

#: Bytes of the log's end that are kept with a death that nobody explained.
_TAIL = 16 * 1024


@dataclass(frozen=True)
class Verdict:
    """``died``: the worker failed without saying why, so that somebody else must."""

    state: RunState
    text: str = ""
    died: bool = False


def judge(events: Iterable[Event], status: int | None, aborted: bool) -> Verdict:
    """The run's state.  ``status`` is an exit status, or minus a signal's number."""
    standing = Standing()
    done = failed = told = False
    for event in events:
        standing = fold(standing, event)
        if isinstance(event, Stage):
            done = done or (event.name == "done" and event.status == "done")
            failed = failed or event.status == "failed"
        told = told or isinstance(event, Failure)
    if aborted:
        return Verdict("aborted", "aborted on request")
    if status != 0 or failed or told:
        return Verdict("failed", died=not told)
    if not done:
        return Verdict("failed", died=True)
    samples = standing.samples
    total = samples.total or 0
    if samples.skipped == 0 and samples.done >= total:
        return Verdict("completed")
    text = f"{samples.done} of {total} samples written, {samples.skipped} skipped"
    return Verdict("incomplete", text)


def split_status(status: int | None) -> tuple[int | None, int | None]:
    """(exit status, signal), of which at most one is known."""
    if status is None:
        return None, None
    return (status, None) if status >= 0 else (None, -status)


def death(status: int | None, oom_kills: int, log: str) -> ErrorInfo:
    """The error of a worker that ended without writing one; ``log`` is the end of its output."""
    code, number = split_status(status)
    if number is not None:
        message = f"the worker was killed by {signal_name(number)}"
        if number == signal.SIGKILL:
            message += " (out of memory?)" if oom_kills <= 0 else f": {_lack_of_memory(oom_kills)}"
    elif code == 0:
        message = "the worker ended with status 0 and never said that it was done"
    else:
        message = f"the worker ended with status {code} and gave no reason"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    if last and number is None:
        message += f"; its last line: {last[:300]}"
    return ErrorInfo("WorkerDied", message, traceback=log)


def _lack_of_memory(kills: int) -> str:
    return f"the kernel ended {kills} processes of this host for lack of memory meanwhile"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def no_interpreter(python: str, error: OSError) -> ErrorInfo:
    """The error of a worker that could not even be started."""
    what = error.strerror or str(error)
    message = f"the interpreter {python} could not be started: {what}; host.python names it"
    return ErrorInfo(type(error).__name__, message)


def tail(path: Path) -> str:
    """The end of a log as text; what cannot be shown is replaced."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            data = file.read(_TAIL)
    except OSError:
        return ""
    lines = re.split(rb"[\r\n]+", data)
    return "\n".join(printable(line) for line in lines[-60:]).strip()


def oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since boot."""
    try:
        text = Path("/proc/vmstat").read_text("ascii")
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
