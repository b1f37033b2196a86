"""The probe's side of an exercise: a keeper in its own session, asked once, listened to.

The keeper ends its exercise when this process is gone: its stdin closes then, however it died.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TypeVar

from eagle3_agent import archive
from eagle3_agent.preflight.check import Ask
from eagle3_agent.protocol import dumps, from_json

T = TypeVar("T")

#: Seconds that an exercise on GPUs may wait for those before it, at the most.
TURN = 400.0

#: Seconds that a keeper gets to clean up once its exercise's time is over.
CLEANING = 12.0

#: Neither the working folder nor the user's PYTHON* variables reach a keeper.
_ISOLATED = ("-I",)

#: An orphan in a session of its own at once: who kills the probe with all below it must not kill
#: what cleans up after it.
_CHILD = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); sys.path.insert(0, sys.argv[1]); "
    "from eagle3_agent.preflight.deep import keeper; keeper.child(sys.argv[2])"
)


def collect(name: str, facts: type[T], ask: Ask) -> T:
    """What ``deep.NAME.perform`` finds.  Raises RuntimeError with why it found nothing."""
    argv = [sys.executable, *_ISOLATED, "-c", _CHILD, str(archive.ROOT), name]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(dumps(ask).encode("ascii") + b"\n")
        process.stdin.flush()  # and it stays open for as long as this process lives
        answer = process.stdout.read()
    try:
        body = json.loads(answer)
    except ValueError:
        raise RuntimeError(f"its keeper ended with status {process.returncode}") from None
    if "failed" in body:
        raise RuntimeError(str(body["failed"]))
    return from_json(facts, body["facts"])
