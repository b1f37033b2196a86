"""What vLLM logs as a warning or an error while something is made: bounded, each text once."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

#: Texts that are kept, and characters of each.
_MOST, _LONGEST = 24, 400


class Overheard:
    """Listens while it is entered; ``lines`` holds what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.dropped = 0
        self._make = logging.getLogRecordFactory()

    def __enter__(self) -> Overheard:
        self._make = logging.getLogRecordFactory()
        # vLLM sets its loggers' handlers anew as it is imported and configured
        logging.setLogRecordFactory(self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.setLogRecordFactory(self._make)

    def _record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        if record.levelno >= logging.WARNING and record.name.partition(".")[0] == "vllm":
            self._keep(record)
        return record

    def _keep(self, record: logging.LogRecord) -> None:
        try:
            text = " ".join(record.getMessage().split())[:_LONGEST]
        except Exception:  # arguments that do not fit the text: whoever prints it says so
            text = str(record.msg)[:_LONGEST]
        if text in self.lines:
            return
        if len(self.lines) < _MOST:
            self.lines.append(text)
        else:
            self.dropped += 1
