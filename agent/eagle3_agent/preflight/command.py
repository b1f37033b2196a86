"""The preflight's own command: one request on stdin, progress and the outcome on stdout."""

from __future__ import annotations

import json
import os
import threading
from typing import IO

from eagle3_agent import ending
from eagle3_agent.protocol import ProtocolError, dumps, from_json

from . import usable
from .check import Ask, Outcome, Progress
from .runner import run

_REQUEST_LIMIT = 4 * 1024 * 1024

#: Seconds between two looks at whether the parent is still there.
_GLANCE = 0.5


def main(stdin: IO[bytes], stdout: IO[bytes]) -> int:
    """``{"profile": …, "deep": false}`` in; ``Progress`` lines and one JSON ``Outcome`` out.

    Status 0 when nothing blocks, 1 when something does, 2 when the request cannot be read
    (then stdout carries ``{"error": text}``).
    """
    try:
        body = stdin.read(_REQUEST_LIMIT + 1)
        if len(body) > _REQUEST_LIMIT:
            raise ProtocolError(f"the request is longer than {_REQUEST_LIMIT} bytes")
        ask = from_json(Ask, json.loads(body))
        usable.demand(ask.profile)
    except (ValueError, RecursionError, ProtocolError) as error:
        stdout.write(dumps({"error": f"the request cannot be read: {error}"}).encode() + b"\n")
        return 2

    def write(value: Progress | Outcome) -> None:
        stdout.write(dumps(value).encode() + b"\n")
        stdout.flush()

    ended = threading.Event()
    threading.Thread(target=_end_with, args=(os.getppid(), ended), daemon=True).start()
    try:
        outcome = run(ask.profile, ask.deep, write)
    except BrokenPipeError:  # as when the parent is gone
        ending.kill_below(os.getpid())
        return 130
    finally:
        ended.set()
    write(outcome)
    return 1 if outcome.report.blocking else 0


def _end_with(parent: int, ended: threading.Event) -> None:
    """Leave with all probes when ``parent`` is gone: nobody is left to hear the answer."""
    while not ended.wait(_GLANCE):
        if os.getppid() != parent:
            ending.kill_below(os.getpid())
            os._exit(130)
