"""An exception -> what a person needs of it: type, message, rank, the line that raised."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import re
import traceback
from types import TracebackType

from eagle3_agent.protocol.values import ErrorInfo, Where

_MAX_TRACEBACK = 200 * 1024
_MAX_MESSAGE = 20 * 1024

#: Frames that pass a call on: the line below them is the one that says something.
_GLUE = re.compile(
    r"/torch/(?:_ops|nn/modules/module|utils/_contextlib|_dynamo/eval_frame|_compile)\.py$"
    r"|/transformers/utils/(?:generic|deprecation|output_capturing)\.py$"
    r"|/(?:contextlib|functools|threading)\.py$|/concurrent/futures/\w+\.py$"
    r"|/importlib/|^<frozen "
)

_RANK = re.compile(r"(?:Worker_TP|WorkerTP|VllmWorker-|Worker_PP\d+_TP|\brank[ =:]\s*)(\d{1,5})\b")


def describe(error: BaseException) -> ErrorInfo:
    """Never raises; an empty message stays empty, since the type and the line still speak."""
    told = getattr(error, "info", None)
    if isinstance(told, ErrorInfo):
        return told  # another process's exception, described where it was raised
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__
    known = module.startswith("eagle3_agent.")
    text = _text(error)
    return ErrorInfo(
        type=kind.__qualname__ if known or not module else f"{module}.{kind.__qualname__}",
        message=_bounded(text, _MAX_MESSAGE),
        rank=_rank(text),
        where=_where(error),
        traceback=_bounded("".join(traceback.format_exception(error)), _MAX_TRACEBACK),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # an exception class with a broken __str__
        return f"(its text cannot be read: {type(failed).__name__})"


def _rank(text: str) -> int | None:
    found = _RANK.search(text) or _RANK.search(multiprocessing.current_process().name)
    if found:
        return int(found.group(1))
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isascii() and rank.isdecimal() else None


def _where(error: BaseException) -> Where | None:
    """The innermost frame outside of the glue; of the cause, if this one was never raised."""
    frames = _frames(error.__traceback__)
    if not frames:
        return _where(error.__cause__) if error.__cause__ is not None else None
    told = [f for f in frames if not _GLUE.search(f.file.replace(os.sep, "/"))]
    return (told or frames)[-1]


def _frames(trace: TracebackType | None) -> list[Where]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        line = trace.tb_lineno or 0
        source = linecache.getline(code.co_filename, line, trace.tb_frame.f_globals).strip()
        found.append(Where(code.co_filename, line, code.co_name, source))
        trace = trace.tb_next
    return found


def _bounded(text: str, limit: int) -> str:
    """The beginning and, in full length, the end: the line that raised is there."""
    if len(text) <= limit:
        return text
    head = limit // 5
    return f"{text[:head]}\n... {len(text) - limit} characters left out ...\n{text[head - limit :]}"
