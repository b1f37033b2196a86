"""One run's guardian: starts the worker, waits for it, ends what it leaves, writes how it ended.

It outlives the agent, the ssh link and the terminal: own session, no hangup,
files instead of pipes.  ``outcome`` decides what the end is called.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from . import archive, causes, ending, outcome, processes, telemetry
from .logwatch import LoadWatcher
from .protocol import ProtocolError
from .protocol.events import Aborting, Diagnosed, Ended, Event, Failure, Load, Note, Spawned
from .protocol.values import ErrorInfo, Profile
from .runs import Exit, Guardian, RunFolder, RunRecord

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

#: Seconds between two looks at the log; a child's end wakes the supervisor at once.
_POLL = 0.25

#: Seconds that a worker's helpers get to follow it by themselves once it has ended.
_GRACE = 2.0

#: Seconds between two telemetry lines of ``gpu.jsonl``.
_SAMPLE_EVERY = 2.0

#: Seconds without a telemetry line after which its process is taken to hang in the driver.
_SAMPLE_SILENCE = 60.0

#: Bytes of the log looked at in one go.
_LOG_PIECE = 1 << 20

#: Bytes of the log that may wait to be looked at.
_LOG_BEHIND = 16 << 20

#: Seconds during which writing the end is tried again on a full disk.
_WRITE_PATIENCE = 600.0


def main(folder: str) -> int:
    """Guard the run in ``folder`` from start to end.  Exit status 0 once its end is written."""
    run = RunFolder(Path(folder).resolve())
    try:
        record = run.record()
    except (OSError, ProtocolError) as error:
        print(f"eagle3_agent supervise: {error}", file=sys.stderr)
        return 2
    _leave_terminal()
    if run.exit() is not None:
        return 0
    supervisor = Supervisor(run, record)  # hears of an abort from here on
    try:
        run.write_guardian(_myself())
    except FileExistsError:
        print(f"eagle3_agent supervise: run {run.run} has a supervisor", file=sys.stderr)
        return 2
    try:
        end = supervisor.guard()
    except Exception as error:
        traceback.print_exc()
        survivors = supervisor.end_all("a fault of the supervisor")
        text = f"the supervisor failed: {type(error).__name__}: {error}"
        supervisor.tell(Failure(time.time(), ErrorInfo(type(error).__name__, text)))
        end = Exit("failed", time.time(), survivors=survivors, text=text)
    supervisor.finish(end)
    return 0


def _leave_terminal() -> None:
    """Own session; orphans below come to this process; no hangup and no Ctrl-C end it."""
    try:
        os.setsid()
    except PermissionError:
        pass  # it leads one already
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    for number in (signal.SIGHUP, signal.SIGINT):
        # a handler and not SIG_IGN: what is ignored stays ignored in the worker, too
        signal.signal(number, lambda *_: None)


def _myself() -> Guardian:
    me = processes.identity(os.getpid())
    start = me.start_time if me else 0
    return Guardian(os.getpid(), start, processes.boot_id(), os.uname().nodename)


class Supervisor:
    """The guard of one run; ``guard`` is called once."""

    def __init__(self, run: RunFolder, record: RunRecord) -> None:
        self._run = run
        self._record = record
        self._abort_asked = False
        self._abort_at_work = False
        self._worker = 0
        self._status: int | None = None
        self._recorder = 0
        self._recorder_since = 0.0
        self._load = LoadWatcher()
        self._log_offset = 0
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_abort)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop

    def _on_abort(self, number: int, frame: FrameType | None) -> None:
        self._abort_asked = True

    def tell(self, event: Event) -> None:
        """Append an event; a disk that is full costs the event, not the guard."""
        try:
            self._run.append(event)
        except (OSError, ProtocolError) as error:
            print(f"{type(event).__name__} could not be written: {error}", file=sys.stderr)

    # ------------------------------------------------------------ the run

    def guard(self) -> Exit:
        """Spawn, wait, clean up; returns what ``exit.json`` will say."""
        self._log_offset = _size(self._run.output)
        killed_before = outcome.oom_kills()
        try:
            self._spawn()
        except OSError as error:
            missing = outcome.no_interpreter(self._record.profile.host.python, error)
            self.tell(Failure(time.time(), missing))
            return Exit("failed", time.time(), text=missing.message)
        self._start_recorder()
        while self._status is None and not self._abort_asked:
            self._rest()
            self._reap()
            self._watch()
        self._abort_at_work = self._status is None
        survivors = self._clean_up()
        self._watch()
        self._stop_recorder()
        return self._judge(survivors, outcome.oom_kills() - killed_before)

    def _spawn(self) -> None:
        """Start the worker in its own session; its output goes straight to the log file."""
        profile = self._record.profile
        mark = {processes.RUN_VARIABLE: str(self._run.path)}
        argv = [profile.host.python, "-m", "eagle3_agent.worker", "run", str(self._run.path)]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        log = os.open(self._run.output, flags, 0o600)
        try:
            child = subprocess.Popen(
                argv,
                cwd=self._run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**interpreter_environment(profile), **mark},
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._worker = child.pid
        child.returncode = 0  # waited for below, together with all orphans
        self.tell(Spawned(time.time(), os.getpid(), self._worker, tuple(argv)))

    def _rest(self) -> None:
        if select.select([self._wake], [], [], _POLL)[0]:
            os.read(self._wake, 4096)

    def _reap(self) -> None:
        """Take note of every child and orphan that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._worker:
                self._status = os.waitstatus_to_exitcode(status)
            elif pid == self._recorder:
                self._recorder = 0

    def _living(self) -> list[processes.Process]:
        """The worker and everything below it, wherever it went."""
        self._reap()
        below = processes.descendants(os.getpid())
        return [p for p in below if p.running and p.pid != self._recorder]

    def _clean_up(self) -> tuple[int, ...]:
        """End what is left; the pids that even KILL did not end."""
        if self._abort_at_work:
            return self.end_all("")
        until = time.monotonic() + _GRACE
        while (left := self._living()) and time.monotonic() < until and not self._abort_asked:
            self._rest()
        if not left:
            return ()
        names = ", ".join(f"{p.name} ({p.pid})" for p in left[:8])
        text = f"{len(left)} processes outlived the worker and were ended: {names}"
        self.tell(Note(time.time(), "warning", text))
        return self.end_all("")

    def end_all(self, why: str) -> tuple[int, ...]:
        """End every descendant, with an Aborting event for each signal."""
        if why:
            self.tell(Note(time.time(), "warning", f"everything is ended: {why}"))

        def said(number: signal.Signals, told: list[processes.Process]) -> None:
            pids = tuple(p.pid for p in told[:64])
            self.tell(Aborting(time.time(), number.name, pids))

        return tuple(p.pid for p in ending.end(self._living, said))

    def _judge(self, survivors: tuple[int, ...], oom_kills: int) -> Exit:
        events = (event for _, event in self._run.read_events())
        verdict = outcome.judge(events, self._status, self._abort_at_work)
        if verdict.died:
            tail = outcome.tail(self._run.output)
            self.tell(Failure(time.time(), outcome.death(self._status, oom_kills, tail)))
        if verdict.state == "failed":
            self._diagnose()
        code, number = outcome.split_status(self._status)
        text = verdict.text
        if survivors:
            text = f"{text}; {len(survivors)} processes could not be ended".lstrip("; ")
        return Exit(verdict.state, time.time(), code, number, survivors, text)

    def _diagnose(self) -> None:
        """Say what happened first, as far as the log tells it; never stands in the run's way."""
        try:
            cause = causes.of_log(self._run.output, self._run.standing().error)
        except Exception as error:
            text = f"the log could not be searched for the cause: {type(error).__name__}: {error}"
            self.tell(Note(time.time(), "warning", text[:400]))
            return
        if cause is not None:
            self.tell(Diagnosed(time.time(), cause))

    def finish(self, end: Exit) -> None:
        """Write the last event, then ``exit.json``: who sees that file has all events."""
        ended = Ended(end.ended, end.state, end.code, end.signal, end.survivors, end.text)
        self.tell(ended)
        until = time.monotonic() + _WRITE_PATIENCE
        while True:
            try:
                self._run.write_exit(end)
                return
            except FileExistsError:
                return
            except OSError as error:
                print(f"exit.json could not be written: {error}", file=sys.stderr)
                if time.monotonic() > until:
                    return
                time.sleep(2.0)

    # ------------------------------------------------------------ what it watches

    def _watch(self) -> None:
        self._watch_log()
        self._watch_recorder()

    def _watch_log(self) -> None:
        """Turn progress bars of the log into Load events."""
        try:
            with open(self._run.output, "rb") as file:
                # a log that runs away is not followed: the bars are at its beginning
                behind = file.seek(0, os.SEEK_END) - self._log_offset
                if behind > _LOG_BEHIND:
                    self._log_offset += behind - _LOG_PIECE
                file.seek(self._log_offset)
                data = file.read(_LOG_PIECE)
        except OSError:
            return
        self._log_offset += len(data)
        for done, total in self._load.feed(data):
            self.tell(Load(time.time(), done, total))

    def _start_recorder(self) -> None:
        """Let a process of its own write ``gpu.jsonl``: NVML can hang, the guard must not."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._recorder_since = time.monotonic()
        try:
            out = os.open(self._run.gpu, flags, 0o600)
            try:
                child = subprocess.Popen(
                    telemetry.argv(_SAMPLE_EVERY),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    start_new_session=True,
                )
            finally:
                os.close(out)
        except OSError as error:
            self.tell(Note(time.time(), "warning", f"no telemetry is recorded: {error}"))
            return
        self._recorder = child.pid
        child.returncode = 0

    def _watch_recorder(self) -> None:
        try:
            silent = time.time() - self._run.gpu.stat().st_mtime
        except OSError:
            return
        since = time.monotonic() - self._recorder_since
        if self._recorder and min(silent, since) > _SAMPLE_SILENCE:
            text = f"no telemetry for {silent:.0f} s: NVML hangs; its process is started again"
            self.tell(Note(time.time(), "warning", text))
            os.kill(self._recorder, signal.SIGKILL)
            self._recorder_since = time.monotonic()
        elif not self._recorder and self._status is None and since > _SAMPLE_SILENCE:
            self._start_recorder()

    def _stop_recorder(self) -> None:
        if not self._recorder:
            return
        os.kill(self._recorder, signal.SIGTERM)
        until = time.monotonic() + 1.0
        while self._recorder and time.monotonic() < until:
            self._rest()
            self._reap()
        if self._recorder:
            os.kill(self._recorder, signal.SIGKILL)


def interpreter_environment(profile: Profile) -> dict[str, str]:
    """The agent's environment, the profile's, and where the worker's code is."""
    env = {**os.environ, **profile.host.env}
    path = env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = f"{archive.ROOT}{os.pathsep}{path}" if path else str(archive.ROOT)
    env["PYTHONUNBUFFERED"] = "1"
    return env


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
