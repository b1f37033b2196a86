"""A probe's side: the request on stdin, its facts on stdout.

Only the module of that probe is imported: with thirty probes at a time, what each imports is what
a quick preflight takes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys

from eagle3_agent.protocol import dumps, from_json

from .check import Ask, Probe

#: Objects between two looks for circles, and looks before a longer one.  With Python's own 700, a
#: file of millions of small JSON lists is looked at again and again: 28 s instead of 6 for 100 MB.
_RARELY = (1_000_000, 20, 100)


def child(module: str, name: str) -> None:
    """Run the probe that ``module`` holds under this name."""
    gc.set_threshold(*_RARELY)
    answer = _only_the_answer()
    held = vars(importlib.import_module(module)).values()
    probe = next(p for p in held if isinstance(p, Probe) and p.name == name)
    ask = from_json(Ask, json.loads(sys.stdin.buffer.read()))
    with os.fdopen(answer, "w", encoding="ascii") as file:
        file.write(dumps(probe.collect(ask)))


def _only_the_answer() -> int:
    """The answer's pipe; what else a library prints to stdout from here on goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer
