"""Bring a vLLM worker's exception to its parent whole: type, message, rank, line.

vLLM sends ``str(exception)`` alone, which for a bare assert is nothing, and nothing at
all for a worker that failed to start.  Here each worker leaves a small file when it
fails, in a folder that the parent made, and the parent reads it where vLLM raises.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from multiprocessing import connection
from pathlib import Path
from typing import Any

from eagle3_agent.protocol import ProtocolError
from eagle3_agent.protocol.values import ErrorInfo
from eagle3_agent.runs import read_value, write_value
from eagle3_agent.worker import failure
from eagle3_agent.worker.engines.base import EngineError

from .patch import Patch, Settings, Verdict, replace
from .sources import Sources, UnreadableError, shown

_EXECUTOR = "vllm.v1.executor.multiproc_executor"
_PATCH = "vllm/worker-errors"
_FOLDER = "EAGLE3_WORKER_ERRORS"

#: Seconds to wait for the exit status of workers that are on their way out.
_LEAVING = 30.0


class RemoteError(EngineError):
    """What a vLLM worker raised; ``info`` is the exception as it was there."""

    def __init__(self, info: ErrorInfo) -> None:
        self.info = info
        place = f" at {info.where.file}:{info.where.line}" if info.where else ""
        rank = "" if info.rank is None else f" of rank {info.rank}"
        super().__init__(f"worker{rank}: {info.type}: {info.message or '(no message)'}{place}")


class WorkerDiedError(EngineError):
    """A vLLM worker process ended without a word: a signal, or the kernel's memory killer."""


def _module() -> Any:
    from vllm.v1.executor import multiproc_executor

    return multiproc_executor


def apply(settings: Settings) -> None:
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="eagle3-errors-")
        atexit.register(shutil.rmtree, os.environ[_FOLDER], ignore_errors=True)
    module = _module()
    replace(module.WorkerProc, "worker_main", _PATCH, _starting)
    replace(module.WorkerProc, "make_worker_process", _PATCH, _remembering)
    for name in ("__init__", "collective_rpc"):
        replace(module.MultiprocExecutor, name, _PATCH, _reading)


def _starting(original: Any) -> Any:
    _Original.worker_main = original
    return worker_main


def _remembering(original: Any) -> Any:
    @wraps(original)
    def make_worker_process(*args: Any, **kwargs: Any) -> Any:
        handle = original(*args, **kwargs)
        _processes[int(handle.rank)] = handle.proc
        return handle

    return make_worker_process


_processes: dict[int, Any] = {}
"""The newest worker process of each rank."""


class _Original:
    worker_main: Callable[..., Any] | None = None


def worker_main(*args: Any, **kwargs: Any) -> Any:
    """Entry of a vLLM worker process: report its errors, then do what vLLM would.

    vLLM passes it by name to a spawned process, so it stands at the module's top level.
    """
    module = _module()
    start = _Original.worker_main or module.WorkerProc.worker_main
    for name in ("__init__", "handle_output"):
        replace(module.WorkerProc, name, _PATCH, _reporting)
    return start(*args, **kwargs)


def _reporting(original: Any) -> Any:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, Exception):
                _report(value, getattr(self, "rank", None))
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            _report(error, getattr(self, "rank", None))
            raise

    return method


def _report(error: Exception, rank: int | None) -> None:
    folder = Path(os.environ[_FOLDER])
    try:
        write_value(
            folder / f"rank-{rank}.json", dataclasses.replace(failure.describe(error), rank=rank)
        )
    except OSError:
        pass  # a full disk must not hide the error that vLLM is about to log


def _reading(original: Any) -> Any:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a call that is not waited for fails later, and its report must still be there then
        if not kwargs.get("non_block") and not getattr(self, "futures_queue", ()):
            for old in Path(os.environ[_FOLDER]).glob("rank-*.json"):
                old.unlink(missing_ok=True)
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            found = explained(error)
            if found is error:
                raise
            raise found from error

    return method


def explained(error: Exception) -> Exception:
    """What a worker raised or how it died, where that is why vLLM raised ``error``; else itself."""
    if isinstance(error, EngineError) or _FOLDER not in os.environ:
        return error
    found, dead = _reports(Path(os.environ[_FOLDER])), _dead()
    if found:
        return RemoteError(found[0])
    return WorkerDiedError(dead) if dead else error


def _dead() -> str:
    """How a worker died that nobody asked to end; empty when none did."""
    leaving = connection.wait([process.sentinel for process in _processes.values()], timeout=0)
    until = time.monotonic() + _LEAVING
    for rank, process in sorted(_processes.items()):
        # its pipe closes first; giving a GPU's memory back, seconds later, comes before its status
        gone = process.sentinel in leaving
        process.join(max(0.0, until - time.monotonic()) if gone else 0)
        code = process.exitcode
        # the executor ends the others with SIGTERM once one has died, and some say so in a status
        if code not in (None, 0, -signal.SIGTERM, 128 + signal.SIGTERM):
            how = f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            memory = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"vLLM's worker of rank {rank} died: {how}{memory}"
    return ""


def _reports(folder: Path) -> list[ErrorInfo]:
    """What the workers left, the oldest first: later ones follow from it."""
    files = sorted(folder.glob("rank-*.json"), key=lambda f: f.stat().st_mtime_ns)
    found = []
    for file in files:
        try:
            found.append(read_value(file, ErrorInfo))
        except (OSError, ProtocolError):
            continue
    return found


def _probe(sources: Sources) -> Verdict:
    method = sources.function(_EXECUTOR, "WorkerProc.enqueue_output")
    for name in ("worker_main", "make_worker_process", "handle_output", "__init__"):
        sources.function(_EXECUTOR, f"WorkerProc.{name}")
    sources.function(_EXECUTOR, "MultiprocExecutor.collective_rpc")
    sends = sources.calls(_EXECUTOR, "WorkerProc.enqueue_output", "str")
    if not sends:
        raise UnreadableError("WorkerProc.enqueue_output does not send str(...) of an exception")
    return "needed", f"WorkerProc.{shown(method)} sends {shown(sends[0])} of an exception"


PATCHES = (
    Patch(
        id=_PATCH,
        title="Bring a worker's error to its parent whole",
        symptom="Worker failed with error '', and after a failed load: See stack trace for "
        "root cause",
        cause="vLLM's workers send the text of an exception alone, or nothing",
        change="workers leave type, message, rank, line and traceback; the parent raises them",
        until="vLLM sends the exception",
        probe=_probe,
        apply=apply,
    ),
)
