"""An exception -> ErrorInfo: type, message, rank and the line that raised; pure."""

from __future__ import annotations

import linecache
import traceback

from eagle3_agent.protocol.values import ErrorInfo, Where

#: Characters of a traceback that are kept, from its end.
_LIMIT = 64 * 1024


def describe(error: BaseException, rank: int | None = None) -> ErrorInfo:
    """An empty message stays empty; the place still speaks."""
    frames = traceback.extract_tb(error.__traceback__)
    where = None
    if frames:
        last = frames[-1]
        line = last.lineno or 0
        source = last.line or linecache.getline(last.filename, line).strip()
        where = Where(last.filename, line, last.name, source)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return ErrorInfo(type(error).__name__, str(error), rank, where, text[-_LIMIT:])
