"""A writer's process: samples out of shared memory into files, one after the other.

It has an interpreter of its own, so that what it does between two system calls costs the model's
process nothing.  It needs numpy and no torch, and tells no file but the sample's: what became of
it goes back to the process that captures.  Its end is that process's: the end of the pipe, and
under a main thread the kernel's signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Union

from eagle3_agent.worker.engines.base import Output

from . import sample, shared
from .files import Stopped
from .formats import Misshapen, Unfit
from .item import Item, States
from .sample import Names, Whole

#: <linux/prctl.h>
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """A sample to write: an ``Item`` by value, its states by their place in the shared memory."""

    index: int
    input_ids: array[int]
    loss_mask: array[int]
    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: str
    names: Names


@dataclass(frozen=True)
class Failed:
    """An error of the system: ``OSError``'s own fields."""

    number: int | None
    reason: str
    path: str | None


@dataclass(frozen=True)
class Broken:
    """What was not foreseen."""

    title: str
    trace: str


Answer = Union[Whole, Unfit, Misshapen, Stopped, Failed, Broken]


def main() -> None:
    """``-c CODE ROOT PIPE MEMORY SIZE PARENT``; PARENT is 0 where its thread may end before it."""
    pipe, memory, size, parent = map(int, sys.argv[2:])
    if parent:
        _end_with(parent)
    work(Connection(pipe), shared.attach(memory, size))


def _end_with(parent: int) -> None:
    """Have the kernel end this process with the one that started it, whatever it is doing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        sys.exit(0)


def work(pipe: Connection, memory: memoryview) -> None:
    """Take the output, then tasks, and answer each, until the other side lets go."""
    try:
        output: Output = pipe.recv()
        while True:
            pipe.send(_answer(pipe.recv(), output, memory, pipe))
    except (EOFError, OSError):  # nobody is there any more
        pass


def _answer(task: Task, output: Output, memory: memoryview, pipe: Connection) -> Answer:
    states = States(memory[task.offset :][: task.size], task.shape, task.dtype, task.offset)
    item = Item(task.index, task.input_ids, task.loss_mask, states, _nothing, _nothing)
    try:
        # nothing comes while a task is worked on: what is there to read is the end
        return sample.write(item, output, task.names, pipe.poll)
    except (Unfit, Misshapen, Stopped) as answer:
        return answer
    except OSError as error:
        path = None if error.filename is None else str(error.filename)
        return Failed(error.errno, error.strerror or str(error), path)
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return Broken(f"{type(error).__name__}: {error}".rstrip(": "), trace)


def _nothing() -> None:
    """The states are there, and the process that captured lets go of them."""
