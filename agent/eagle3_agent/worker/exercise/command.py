"""``worker exercise NAME --report FILE``: what is asked as JSON on stdin, facts as JSON in FILE.

    compute      memory patterns and a matrix product on the first device
    peers        copies between the devices, and whether they are direct
    allreduce    one rank of an all-reduce; ``rank``, ``ranks`` and ``store`` are asked
    model        a tiny random model of a checkpoint's family and rows for it; ``profile``,
                 ``folder`` and ``rows`` are asked

Every report has ``phase`` (what was begun last, ``done`` at the end) and ``problem`` (empty, or
what the library said).
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

from .report import Asked, Report


def main(argv: list[str]) -> int:
    """Returns 0 when the exercise came to its end, whatever it found; 1 when it failed."""
    parser = argparse.ArgumentParser(prog="eagle3_agent.worker exercise")
    parser.add_argument("name", choices=("compute", "peers", "allreduce", "model"))
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args(argv)
    report = Report(options.report)
    try:
        _perform(options.name, json.loads(sys.stdin.buffer.read()), report)
    except Exception as error:  # a library's: it is the finding
        traceback.print_exception(error)
        report.tell(problem=f"{type(error).__name__}: {error}"[:2000])
        return 1
    report.tell(phase="done")
    return 0


def _perform(name: str, asked: Asked, report: Report) -> None:
    if name == "compute":
        from .compute import perform
    elif name == "peers":
        from .peers import perform
    elif name == "allreduce":
        from .allreduce import perform
    else:
        from .model import perform
    perform(asked, report)
