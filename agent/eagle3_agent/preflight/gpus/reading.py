"""All GPUs by NVML, from a child that says which call it is about to make.

A call that hangs costs its GPU: the child is killed, the GPU and the call are named, and another
child goes on with the rest.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from eagle3_agent import archive, nvml
from eagle3_agent.nvml_child import PAIRS
from eagle3_agent.nvml_facts import Health, Pair
from eagle3_agent.preflight.text import show
from eagle3_agent.protocol import ProtocolError, from_json
from eagle3_agent.protocol.values import Gpu

#: Seconds for a call of ``_SLOW``: the driver initialises a GPU that nobody else has open.
OPENING = 8.0
_SLOW = ("nvmlInit", "nvmlDeviceGetHandleByIndex")

#: Seconds for one call.  The slowest one seen on a busy host took 0.2 s.
CALL = 3.0

#: Seconds for everything, however many GPUs hang.
WHOLE = 20.0

_LINE_MAX = 1 << 20
_GRACE = 0.5

_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eagle3_agent.nvml_child import tell; tell(sys.argv[2], sys.argv[3])"
)


@dataclass
class Look:
    """What was read so far."""

    gpus: dict[int, Gpu] = field(default_factory=dict)
    health: dict[int, Health] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    pairs_problem: str = ""
    problem: str = ""
    """Why there is no list of GPUs."""
    driver: str = ""
    cuda: str = ""
    library: str = ""
    count: int = 0
    hung: set[int] = field(default_factory=set)


@dataclass
class _Place:
    """Where a child is: the GPU (None while NVML is opened, else PAIRS) and the call."""

    gpu: int | None = None
    call: str = "nvmlInit"
    ended: bool = False


def look(opening: float = OPENING, call: float = CALL, whole: float = WHOLE) -> Look:
    """Everything that NVML says within ``whole`` seconds; never raises for what NVML does."""
    found = Look()
    deadline = time.monotonic() + whole
    while True:
        place = _Place()
        why = _follow(found, place, opening, call, deadline)
        if place.ended or place.gpu == PAIRS:
            found.pairs_problem = why
            return found
        if place.gpu is None:
            _give_up(found, why)
            return found
        here = found.gpus.get(place.gpu, Gpu(place.gpu))
        found.gpus[place.gpu] = replace(here, error=why)
        found.hung.add(place.gpu)
        if time.monotonic() > deadline:
            _give_up(found, "the time for NVML's answers was used up")
            return found


def _give_up(found: Look, why: str) -> None:
    """What is not read yet will not be."""
    if not found.count:
        found.problem = found.problem or why
    hung = ", ".join(str(index) for index in sorted(found.hung))
    for index in range(found.count):
        if index not in found.gpus:
            after = f" (after GPU {hung} hung)" if hung else ""
            found.gpus[index] = Gpu(index, error=f"not read: {why}{after}")
    found.pairs_problem = why


def _follow(found: Look, place: _Place, opening: float, call: float, deadline: float) -> str:
    """Read one child to its end, or until it hangs; why it went no further, else empty."""
    done = ",".join(str(index) for index in sorted(found.gpus))
    hung = ",".join(str(index) for index in sorted(found.hung))
    # in the caller's group: whoever bounds this process ends the child with it
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _CHILD, os.fspath(archive.ROOT), done, hung],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    hangs = True
    try:
        for line in _lines(process, place, opening, call, deadline):
            _take(found, place, line)
        hangs = False
    except TimeoutError:
        return nvml.hangs(place.call)
    except (ValueError, RecursionError, ProtocolError, KeyError) as error:
        return f"NVML's answers cannot be read: {show(str(error), 100)}"
    finally:
        status = _end(process, hangs)
    return (
        "" if place.ended else f"the process that asks NVML ended ({place.call}, status {status})"
    )


def _lines(
    process: subprocess.Popen[bytes], place: _Place, opening: float, call: float, deadline: float
) -> Iterator[bytes]:
    """Its lines as they come.

    Raises TimeoutError when none does, ValueError for one without end.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            limit = opening if place.call in _SLOW else call
            left = min(limit, deadline - time.monotonic())
            if left <= 0 or not selector.select(left):
                raise TimeoutError
            data = os.read(pipe, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
            if len(rest) > _LINE_MAX:
                raise ValueError("a line without end")


def _take(found: Look, place: _Place, line: bytes) -> None:
    word, _, text = line.partition(b" ")
    if word == b"call":
        place.call = show(text.decode("ascii", "replace"), 60)
        return
    body = json.loads(text)
    if word == b"at":
        place.gpu = body
    elif word == b"host":
        found.driver, found.cuda, found.count = body["driver"], body["cuda"], body["count"]
    elif word == b"library":
        found.library = body
    elif word == b"problem":
        found.problem = body
    elif word == b"gpu":
        gpu = from_json(Gpu, body)
        found.gpus[gpu.index] = gpu
    elif word == b"health":
        health = from_json(Health, body)
        found.health[health.index] = health
    elif word == b"pairs":
        found.pairs = tuple(from_json(Pair, pair) for pair in body)
    elif word == b"end":
        place.ended = True


def _end(process: subprocess.Popen[bytes], hangs: bool) -> int | None:
    assert process.stdout is not None
    process.stdout.close()
    if hangs:
        process.kill()
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()  # one that waits in the kernel dies when the kernel lets it go
        return None
