"""From a run folder to a supervisor that guards it, or to a run that ends without one."""

from __future__ import annotations

import os
import subprocess
import time

from eagle3_agent import archive
from eagle3_agent.preflight.check import Outcome
from eagle3_agent.protocol.events import Ended, Failure, Stage
from eagle3_agent.protocol.values import ErrorInfo, RunState
from eagle3_agent.runs import Exit, RunFolder

from .errors import Refusal
from .waiting import until

#: Seconds that a supervisor gets to say that it is there.
_PATIENCE = 20.0


async def spawn(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start the run's supervisor and wait until it guards the run; raises Refusal.

    The caller polls the process some time, so that it does not stay a zombie.
    """
    child = _start(folder)
    await until(lambda: folder.guardian() is not None or child.poll() is not None, _PATIENCE, 0.02)
    if folder.guardian() is None and folder.exit() is None:
        child.kill()
        text = f"the supervisor of run {folder.run} did not start"
        log = folder.path / "supervisor.log"
        why = log.read_text("utf-8", errors="replace")[-500:]
        end_unstarted(folder, "failed", ErrorInfo("SupervisorDied", text, traceback=why))
        todo = f"Read {log} on the host."
        raise Refusal("The run could not be started", text, todo, code="failed")
    return child


def _start(folder: RunFolder) -> subprocess.Popen[bytes]:
    """In its own session and with files for streams: nothing of the agent's can end it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    log = os.open(folder.path / "supervisor.log", flags, 0o600)
    try:
        return subprocess.Popen(
            archive.command("supervise", str(folder.path)),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


def end_unstarted(folder: RunFolder, state: RunState, error: ErrorInfo | None) -> None:
    """End a run that has no supervisor; without ``error`` it was taken out of the queue."""
    now = time.time()
    if error is not None:
        folder.append(Failure(now, error))
    text = error.message if error else "taken out of the queue"
    folder.append(Ended(now, state, text=text))
    folder.write_exit(Exit(state, now, text=text))


def tell_preflight(folder: RunFolder, outcome: Outcome, began: float) -> None:
    """The preflight's events, with the times at which it really ran (epoch seconds)."""
    detail = ", ".join(v.check for v in outcome.report.blocking)
    folder.append(Stage(began, "preflight", "start"))
    folder.append(Stage(outcome.report.at, "preflight", "done", detail))
