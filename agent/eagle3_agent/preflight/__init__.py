"""Is this host ready for this profile?  Facts are collected, then judged.

``check`` is the contract, ``runner`` collects and judges, ``catalogue`` lists
the checks; every other module is one subject.  Nothing here changes the host:
the one thing that is written (output's write probe) is removed again.
"""

from __future__ import annotations

import json
from typing import IO

from eagle3_agent.protocol import ProtocolError, dumps, from_json

from .check import Ask, Outcome
from .runner import run

__all__ = ["Ask", "Outcome", "main", "run"]

_REQUEST_LIMIT = 4 * 1024 * 1024


def main(stdin: IO[bytes], stdout: IO[bytes]) -> int:
    """``{"profile": …, "deep": false}`` in, one JSON ``Outcome`` out.

    Status 0 when nothing blocks, 1 when something does, 2 when the request cannot be read
    (then stdout carries ``{"error": text}``).
    """
    try:
        body = stdin.read(_REQUEST_LIMIT + 1)
        if len(body) > _REQUEST_LIMIT:
            raise ProtocolError(f"the request is longer than {_REQUEST_LIMIT} bytes")
        ask = from_json(Ask, json.loads(body))
    except (ValueError, RecursionError, ProtocolError) as error:
        stdout.write(dumps({"error": f"the request cannot be read: {error}"}).encode() + b"\n")
        return 2
    outcome = run(ask.profile, ask.deep)
    stdout.write(dumps(outcome).encode() + b"\n")
    stdout.flush()
    return 1 if outcome.report.blocking else 0
