"""The first errors that a run's log names before its first traceback; pure.

An engine of several processes often says what happened (a worker that died,
memory that ran out) in a line of its own, and raises something vaguer after it.
"""

from __future__ import annotations

import re

#: A level as logging prints it at a line's beginning, behind the process's name at most.
_ERROR = re.compile(rb"^(?:\([^)\r\n]{1,80}\) )?(?:ERROR|CRITICAL|FATAL)\b[^\r\n]{0,2000}")
_TRACEBACK = b"Traceback (most recent call last)"

#: Lines kept, and bytes looked at.
_KEPT = 6
_MOST = 16 * 1024 * 1024


class LogErrors:
    """Feed it the log's bytes in order."""

    def __init__(self) -> None:
        self.lines: tuple[str, ...] = ()
        self.full = False
        """Nothing that comes later is taken."""
        self._rest = b""
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Look at the next bytes; a line that is not finished waits for the next call."""
        self._seen += len(data)
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-4096:]
        for line in whole:
            if self.full:
                return
            found = _ERROR.match(line.rsplit(b"\r", 1)[-1])
            if found is not None and _TRACEBACK not in line:
                self.lines = (*self.lines, found[0].decode("utf-8", "replace"))
            self.full = _TRACEBACK in line or len(self.lines) >= _KEPT
        self.full = self.full or self._seen > _MOST
