"""Processes that a test starts, by the identity of each, and ends again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3_agent import processes

Start = Callable[..., int]
"""``start(argv, orphan=False, **options)`` -> pid; ``orphan`` lets its parent die at once."""


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Start]:
    begun: list[processes.Identity] = []

    def start(argv: list[str], *, orphan: bool = False, **options: Any) -> int:
        pid = _orphan(folder, argv, options) if orphan else subprocess.Popen(argv, **options).pid
        who = processes.identity(pid)
        assert who is not None
        begun.append(who)
        return pid

    yield start
    for who in begun:
        processes.send(who, signal.SIGKILL)


def _orphan(folder: Path, argv: list[str], options: dict[str, Any]) -> int:
    note = folder / "pid"
    note.unlink(missing_ok=True)
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[2:]); "
        "open(sys.argv[1] + '.new', 'w').write(str(p.pid)); "
        "import os; os.rename(sys.argv[1] + '.new', sys.argv[1]); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(note), *argv], check=True, **options)
    return int(note.read_text())


#: A process that says that it is ready, and leaves on no signal but KILL.
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').close()\n"
    "time.sleep(600)",
]
