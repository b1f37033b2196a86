"""The script as a process: found and compiled before anything else, started, ended, judged."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import eagle3_agent
from eagle3_agent import ending, outcome, processes
from eagle3_agent.protocol.values import ErrorInfo, Where
from eagle3_agent.worker.errors import WorkerError

from . import channel

#: Bytes; a script by hand is a few hundred lines.
_LARGEST = 4 << 20


class ScriptError(WorkerError):
    """The script cannot be run, or did not end well."""

    def __init__(self, text: str, info: ErrorInfo | None = None) -> None:
        super().__init__(text)
        self.info = info
        """The script's own exception, if it had one."""


def find(named: str | None) -> Path:
    """The script, known to compile under this interpreter; raises ScriptError."""
    if not named:
        raise ScriptError("engine.script names no file: set it to the script's whole path")
    path = Path(named)
    if not path.is_absolute():
        raise ScriptError(f"engine.script = {named}: give the script's whole path on this host")
    try:
        with open(path, "rb", opener=_opener) as file:
            source = file.read(_LARGEST + 1)
    except OSError as error:
        reason = error.strerror or error
        raise ScriptError(f"engine.script = {path} cannot be read: {reason}") from None
    if len(source) > _LARGEST:
        raise ScriptError(f"engine.script = {path} is larger than 4 MiB: it is no script")
    _compile(path, source)
    return path


def _opener(path: str, flags: int) -> int:
    """Without waiting for the other end of a pipe; raises OSError for what is no file."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file")
    return fd


def _compile(path: Path, source: bytes) -> None:
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = Where(str(path), error.lineno or 0, "", (error.text or "").strip())
        text = f"{path}, line {where.line}: {error.msg}"
        raise ScriptError(text, ErrorInfo(type(error).__name__, text, where=where)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScriptError(f"{path} is no Python: {error or type(error).__name__}") from None


class Child:
    """The script's process and everything below it."""

    def __init__(self, run: Path, script: Path, arguments: tuple[str, ...]) -> None:
        """Starts it, in its own folder; output goes where this process's goes.

        Raises ScriptError when that cannot be done.
        """
        self._script = script
        argv = [sys.executable, "-m", "eagle3_agent.worker.script.bootstrap", str(script)]
        try:
            self._process = subprocess.Popen(
                [*argv, *arguments],
                cwd=script.parent,
                stdin=subprocess.DEVNULL,
                env=_environment(run),
            )
        except (OSError, ValueError) as error:
            raise ScriptError(f"{script} could not be started: {error}") from None

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or minus a signal's number; None while it runs on."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """TERM, INT, KILL to it and all below it; returns when they are gone or cannot be ended.

        Some of them may be reparented meanwhile: who was seen once is followed by identity.
        """
        seen: dict[processes.Identity, processes.Process] = {}

        def living() -> list[processes.Process]:
            self._process.poll()
            for process in processes.descendants(os.getpid()):
                seen[process.identity] = process
            return [p for p in seen.values() if processes.alive(p.identity)]

        ending.end(living, lambda number, told: None)

    def judge(self, status: int, ended: channel.Ended | None, last_line: str) -> None:
        """Raises ScriptError unless the script ended well."""
        if status == 0 and ended is None:
            return
        name = self._script.name
        if ended is not None and ended.error.type != "SystemExit":
            place = ended.error.where
            line = f", {place.file}:{place.line}" if place else ""
            text = (
                f"{name} raised {ended.error.type}: {ended.error.message or '(no message)'}{line}"
            )
            raise ScriptError(text, ended.error)
        if status < 0:
            text = f"{name} was killed by {outcome.signal_name(-status)}"
        else:
            text = f"{name} ended with exit status {status}"
        if ended is not None:
            message = ended.error.message
            said = f": {message}" if message and message != str(status) else ""
            raise ScriptError(
                text + said,
                ErrorInfo(
                    "SystemExit", text + said, None, ended.error.where, ended.error.traceback
                ),
            )
        if status == -signal.SIGKILL:
            text += " (out of memory?)"
        raise ScriptError(f"{text}; the last line of output: {last_line}" if last_line else text)


def _environment(run: Path) -> dict[str, str]:
    """The one that this process was started with, which its own start has added to since."""
    env = dict(os.environ)
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        env = dict(os.fsdecode(item).split("=", 1) for item in given if b"=" in item)
    except OSError:
        pass
    root = str(Path(eagle3_agent.__file__).parents[1])
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
    env[channel.VARIABLE] = str(run)
    return env
