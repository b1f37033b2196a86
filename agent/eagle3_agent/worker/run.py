"""One run from its folder: started, ended by a signal, or ended by what went wrong.

The final state is the supervisor's to decide; the run gives the facts for it:
the last stage is ``done`` when every file is flushed, and a Failure says why not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Union

from eagle3_agent.protocol.events import Failure
from eagle3_agent.runs import RunFolder

from . import failure
from .engines.base import EngineError
from .errors import WorkerError
from .job import Job
from .script.job import ScriptJob

AnyJob = Union[Job, ScriptJob]


class Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(path: Path) -> int:
    """Run what ``path`` asks for; returns the worker's exit status.

    On SIGTERM or SIGINT cleans up and then dies of that signal.
    """
    folder = RunFolder(path.resolve())
    job: AnyJob | None = None
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        record = folder.record()
        job = (ScriptJob if record.engine == "script" else Job)(folder, record)
        job.go()
        return 0
    except Stopped as stopped:
        return _die(job, stopped.number)
    except BaseException as error:
        return _fail(folder, job, error)


def _stop(number: int, _: FrameType | None) -> None:
    # one is enough: what cleans up must not be interrupted by its repeats
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _die(job: AnyJob | None, number: int) -> int:
    if job is not None:
        job.abandon()
    print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _fail(folder: RunFolder, job: AnyJob | None, error: BaseException) -> int:
    if isinstance(error, (WorkerError, EngineError)):
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    try:
        # first of all: a close that hangs must not cost the cause
        folder.append(Failure(time.time(), failure.describe(error)))
        if job is not None:
            job.stages.failed()
    except OSError as unwritten:
        print(f"{folder.events}: {unwritten}", file=sys.stderr, flush=True)
    if job is not None:
        job.abandon()
    return 1
