"""The capturing process's side of a writer's process: start it, ask it, end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from eagle3_agent.worker.engines.base import Output

from .child import Broken, Failed, Task
from .files import Stopped
from .item import Item
from .sample import Names, Whole
from .shared import Shared

#: Of the folder that holds ``eagle3_agent``: the child imports this very code.
_ROOT = str(Path(__file__).resolve().parents[3])

_CODE = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from eagle3_agent.worker.writing import child; child.main()"
)

#: Libraries of numpy start a thread a core, which nothing here would use.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

#: Signals that are sent to a run's whole group: the capturing process decides what they mean.
_NOT_ITS_OWN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds in which a child that was told to end may sync and remove its file.
_ENDING = 5.0


class WriterLost(Exception):
    """A writer's process could not be started, or ended without being asked to."""


class WriterBroken(Exception):
    """An error that a writer's process did not foresee."""

    def __init__(self, title: str, trace: str) -> None:
        super().__init__(title)
        self.trace = trace


class WriterProcess:
    """One child, for one thread; ``stop`` and ``kill`` may be called from any."""

    def __init__(self, output: Output, memory: Shared) -> None:
        """Start it; it is ready some tenths of a second later.  Raises WriterLost."""
        self._stopping = False
        self._socket, theirs = socket.socketpair()
        # a second descriptor: to end the connection while a thread waits on it
        self._pipe = Connection(os.dup(self._socket.fileno()))
        try:
            with theirs:
                self._process = _start(theirs.fileno(), memory)
        except OSError as error:
            self._let_go()
            reason = error.strerror or error
            raise WriterLost(f"a writer's process could not be started ({reason})") from error
        with suppress(OSError):  # it has ended already, which the first sample tells
            self._pipe.send(output)

    def write(self, item: Item, names: Names) -> Whole:
        """Raises Unfit, Misshapen, OSError, Stopped, WriterLost, WriterBroken; then there is no
        file."""
        answer = self._ask(_task(item, names), names)
        if isinstance(answer, Whole):
            return answer
        if isinstance(answer, Failed):
            raise OSError(answer.number, answer.reason, answer.path)
        if isinstance(answer, Broken):
            raise WriterBroken(answer.title, answer.trace)
        raise answer

    def _ask(self, task: Task, names: Names) -> Any:
        try:
            self._pipe.send(task)
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            ended = self._end()
            # it had no time to: nobody writes to it any more
            names.temporary.unlink(missing_ok=True)
            if self._stopping:
                raise Stopped from None
            raise WriterLost(f"a writer's process {ended}") from error

    def stop(self) -> None:
        """Have it leave the file it is at, remove it, and end."""
        self._stopping = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it at once: it does not answer."""
        self._stopping = True
        self._process.kill()

    def close(self) -> None:
        """End it, and wait for that."""
        self.stop()
        self._end()

    def _end(self) -> str:
        """Wait for its end, enforced if need be; how it ended, in words."""
        self._let_go()
        try:
            status = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                status = self._process.wait(_ENDING)
            except subprocess.TimeoutExpired:  # within the kernel, waiting for a disk
                return "does not answer and cannot be killed"
        if status < 0:
            return f"was killed by {_signal_name(-status)}"
        return f"ended with exit status {status}"

    def _let_go(self) -> None:
        with suppress(OSError):
            self._pipe.close()
        self._socket.close()


def _start(pipe: int, memory: Shared) -> subprocess.Popen[bytes]:
    """Never a fork that goes on in Python: this process holds locks, threads and perhaps CUDA.

    The kernel's signal comes with the end of the starting thread, not of its process: it is asked
    for under the main thread alone, and a pipe's end does without it.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = (pipe, memory.fd, memory.size, os.getpid() if main else 0)
    # blocked signals stay blocked in a child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_ITS_OWN)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _CODE, _ROOT, *map(str, numbers)],
            env={**os.environ, **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(pipe, memory.fd),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _task(item: Item, names: Names) -> Task:
    states = item.states
    assert states.offset is not None
    return Task(
        index=item.index,
        input_ids=array("q", item.input_ids),
        loss_mask=array("q", item.loss_mask),
        offset=states.offset,
        size=states.nbytes,
        shape=states.shape,
        dtype=states.dtype,
        names=names,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
