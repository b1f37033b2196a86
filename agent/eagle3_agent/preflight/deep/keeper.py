"""An exercise's own session: runs its commands, and leaves no process, file or segment behind.

Commands are bounded in time.  Everything ends when the exercise does, when the probe that asked
for it is gone, or on SIGTERM: all below this process is ended, its scratch folder is removed, and
so is every segment of /dev/shm that its processes had mapped and nobody has now.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from eagle3_agent import ending, processes
from eagle3_agent.preflight.check import Ask
from eagle3_agent.protocol import dumps, from_json

from . import segments

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

#: vLLM's own clean-up is asked for by TERM; what hangs in the driver hears nothing but KILL.
_STEPS = (ending.Step(signal.SIGTERM, 4.0), ending.Step(signal.SIGKILL, 3.0))

_POLL = 0.05

#: Seconds between two looks at what the processes have mapped, and at who else wants the GPUs.
_GLANCE = 1.0

#: Seconds after which a main thread that does not clean up (it hangs in a dead mount) is given up.
_LAST_RESORT = 15.0

#: An abstract socket is a lock without a file, and goes with its process (unix(7)).
_TURN = "\0eagle3-exercise"

#: A socket's path holds 107 bytes (unix(7)), and vLLM's own names take 37 of them.
_SOCKET_FOLDER = 70

#: Bytes of a command's output that are looked at for its last words.
_TAIL = 16 * 1024


class Stopped(Exception):
    """The exercise is to end: the text says why, empty when nobody listens any more."""


@dataclass(frozen=True)
class Command:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    timeout: float
    """Seconds."""
    stdin: bytes = b""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    name: str
    status: int | None
    """Exit status, negative for a signal; None when it was ended for its time."""
    seconds: float
    words: tuple[str, ...] = ()
    """The last lines of its output that say something."""


@dataclass
class _Running:
    command: Command
    process: subprocess.Popen[bytes]
    began: float
    status: int | None = None
    seconds: float | None = None


@dataclass
class Keeper:
    """A context manager; used by one exercise."""

    scratch: Path = Path("/nowhere")
    disturbed: Callable[[], str] = lambda: ""
    """Asked once a second while commands run: why the exercise must end now; empty if it need not.
    """
    folders: list[Path] = field(default_factory=list)
    """Other folders that the exercise makes: removed at its end."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _seen: set[str] = field(default_factory=set)
    _glanced: float = 0.0

    def __enter__(self) -> Keeper:
        self.scratch = Path(tempfile.mkdtemp(prefix="eagle3-exercise-"))
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()
        segments.remove(self._seen)
        for folder in (self.scratch, *self.folders):
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        self._stop.set()

    @contextlib.contextmanager
    def turn(self, patience: float) -> Iterator[None]:
        """Nobody else's exercise has the GPUs meanwhile; raises Stopped when it takes too long."""
        until = time.monotonic() + patience
        with socket.socket(socket.AF_UNIX) as lock:
            while True:
                try:
                    lock.bind(_TURN)
                    break
                except OSError:
                    self._listen()
                if time.monotonic() > until:
                    raise Stopped(f"waited {patience:.0f} s for another exercise to end")
                time.sleep(0.2)
            yield

    def run(
        self, commands: Sequence[Command], *, after_failure: float | None = None
    ) -> list[Ended]:
        """Run them side by side, each in its time; raises Stopped and OSError.

        Nothing of a command that has ended is left running when this returns.  Where they wait
        for each other, ``after_failure`` is the seconds that the rest get once one has failed.
        """
        running = [self._start(command) for command in commands]
        failed: float | None = None
        while any(r.seconds is None for r in running):
            time.sleep(_POLL)
            self._listen()
            now = time.monotonic()
            if failed is None and any(r.status for r in running):
                failed = now
            over = failed is not None and after_failure is not None and now > failed + after_failure
            for each in running:
                if each.seconds is None:
                    self._look(each, over)
            self._glance()
        self._end_all()
        return [
            Ended(r.command.name, r.status, r.seconds or 0.0, self._words(r.command.name))
            for r in running
        ]

    def _temporary(self) -> dict[str, str]:
        """Commands make their temporary files in the scratch folder, vLLM's sockets among them."""
        fits = len(os.fsencode(self.scratch)) <= _SOCKET_FOLDER
        return {"TMPDIR": str(self.scratch)} if fits else {}

    def log(self, name: str) -> Path:
        return self.scratch / f"{name}.log"

    def _start(self, command: Command) -> _Running:
        with (
            tempfile.TemporaryFile(dir=self.scratch) as given,
            self.log(command.name).open("wb") as log,
        ):
            given.write(command.stdin)
            given.seek(0)
            process = subprocess.Popen(
                list(command.argv),
                stdin=given,
                stdout=log,
                stderr=log,
                env={**command.env, **self._temporary()},
                cwd=self.scratch,
            )
        return _Running(command, process, time.monotonic())

    def _look(self, each: _Running, over: bool) -> None:
        passed = time.monotonic() - each.began
        each.status = each.process.poll()
        if each.status is not None:
            each.seconds = passed
        elif over or passed > each.command.timeout:
            segments.note(self._seen, os.getpid())
            ending.end(lambda: self._tree(each.process), lambda *_: None, _STEPS)
            each.process.poll()
            each.seconds, each.status = passed, None

    def _tree(self, process: subprocess.Popen[bytes]) -> list[processes.Process]:
        process.poll()
        first = processes.read(process.pid)
        found = [first] if first else []
        return [p for p in found + processes.descendants(process.pid) if p.running]

    def _listen(self) -> None:
        if self._stop.is_set():
            raise Stopped("")

    def _glance(self) -> None:
        if time.monotonic() - self._glanced < _GLANCE:
            return
        self._glanced = time.monotonic()
        segments.note(self._seen, os.getpid())
        why = self.disturbed()
        if why:
            raise Stopped(why)

    def _end_all(self) -> None:
        segments.note(self._seen, os.getpid())
        ending.end(
            lambda: [p for p in processes.descendants(os.getpid()) if p.running],
            lambda *_: None,
            _STEPS,
        )

    def _words(self, name: str) -> tuple[str, ...]:
        try:
            with self.log(name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ()
        return tuple(line.strip() for line in text.splitlines() if line.strip())[-40:]


# ------------------------------------------------------------------ the process


def child(name: str) -> None:
    """What the keeper's process does: ``deep.NAME.perform`` for the Ask on stdin."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ask = from_json(Ask, json.loads(_line()))
    exercise = importlib.import_module(f"eagle3_agent.preflight.deep.{name}")
    keeper = Keeper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stopper(keeper))
    threading.Thread(target=_attend, args=(keeper,), daemon=True).start()
    try:
        with keeper:
            answer = {"facts": exercise.perform(keeper, ask)}
    except Stopped as stopped:
        answer = {"failed": f"it was stopped: {stopped}"}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(dumps(answer))
        sys.stdout.flush()


def _line() -> bytes:
    """The first line of stdin and no byte more."""
    found = bytearray()
    while not found.endswith(b"\n") and (byte := os.read(0, 1)):
        found += byte
    return bytes(found)


def _stopper(keeper: Keeper) -> Callable[[int, FrameType | None], None]:
    return lambda number, frame: keeper.stop()


def _attend(keeper: Keeper) -> None:
    """Wait for the probe's end; when the exercise does not hear of it, end it from here."""
    while os.read(0, 64):
        pass
    keeper.stop()
    time.sleep(_LAST_RESORT)
    for process in processes.descendants(os.getpid()):
        processes.send(process.identity, signal.SIGKILL)
    os._exit(1)
