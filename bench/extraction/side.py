"""One side in a process of its own: ``python -m bench.extraction.side`` with its Spec on stdin.

First line in: the Spec.  First line out: ``{"ready": {...}}``.  Then each line ``go`` is
answered by one Round, until ``end`` or the end of the input.  An error is a line
``{"error": "..."}`` and exit status 1.  What libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .spec import Side, Spec


def _plain(spec: Spec) -> Side:
    from .plain import Plain

    return Plain(spec)


def _ours(spec: Spec) -> Side:
    from .ours import Ours

    return Ours(spec)


def _library(spec: Spec) -> Side:
    from .library import Library

    return Library(spec)


def _connector(spec: Spec) -> Side:
    from .connector import Connector

    return Connector(spec)


def _disk(spec: Spec) -> Side:
    from .limits import Disk

    return Disk(spec)


def _matmul(spec: Spec) -> Side:
    from .limits import Matmul

    return Matmul(spec)


SIDES: dict[str, Callable[[Spec], Side]] = {
    "plain": _plain,
    "vllm": _ours,
    "speculators": _ours,
    "transformers": _ours,
    "library": _library,
    "connector": _connector,
    "disk": _disk,
    "matmul": _matmul,
}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries and their children log there

    def say(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    side: Side | None = None
    try:
        spec = Spec.read(sys.stdin.readline())
        side = SIDES[spec.side](spec)
        say({"ready": side.about})
        for line in sys.stdin:
            if line.strip() != "go":
                break
            say(side.round().as_json())
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"[:2000]})
        return 1
    finally:
        if side is not None:
            side.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
