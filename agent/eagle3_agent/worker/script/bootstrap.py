"""The script's process: what ``python FILE ARGUMENTS`` does, with a watch on its imports.

    python -m eagle3_agent.worker.script.bootstrap FILE ARGUMENTS...

The script sees the ``sys.argv``, ``sys.path`` and ``__main__`` that it would see by itself, its
exit status and its traceback are its own; an exception is told to the run as well.
"""

from __future__ import annotations

import builtins
import ctypes
import dataclasses
import faulthandler
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from eagle3_agent.protocol.values import ErrorInfo, Where
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import failure
from eagle3_agent.worker.compat.sources import GENERATOR

from . import channel, hook

#: Names the script, for processes that it spawns.
SCRIPT = "EAGLE3_SCRIPT"

_PR_SET_PDEATHSIG = 1  # prctl(2)

_AGAIN = "eagle3_agent.worker.script.spawned"


def main() -> None:
    _die_with_parent()
    script = sys.argv[1]
    sys.argv[:] = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(script)
    os.environ[SCRIPT] = script
    faulthandler.enable()
    watch_imports()
    _rerun_in_spawned(script)
    code = compiled(script)
    module = _main_module(script)
    try:
        exec(code, module.__dict__)  # noqa: S102  the user's own script is what is asked for
    except BaseException as error:
        _tell(error, script)


def _die_with_parent() -> None:
    """TERM when the run's worker is gone without a word: nobody else would know of the script."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def watch_imports() -> None:
    """Patches wait for the import of what they patch."""
    profile = RunFolder(channel.run_folder()).record().profile

    def library() -> None:
        from . import library

        library.patch(profile)

    def saving() -> None:
        from . import saving

        if profile.output.format == "speculators-pt":
            saving.apply(Path(profile.output.dir))
            if multiprocessing.parent_process() is None:  # once, and not by each of vLLM's workers
                channel.tell(channel.Findings((saving.FINDING,)))

    hook.install(on_import={GENERATOR: library}, after_import={"torch": saving})


def compiled(script: str) -> CodeType:
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec", dont_inherit=True)


def _main_module(script: str) -> ModuleType:
    """A fresh ``__main__``, as the interpreter makes it for a file."""
    module = ModuleType("__main__")
    module.__file__ = script
    module.__loader__ = SourceFileLoader("__main__", script)
    module.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    return module


_kept: list[ModuleType] = []
"""This file's own module, whose names would be cleared with it."""


def _rerun_in_spawned(script: str) -> None:
    """A spawned process runs the main file again, by its path: here with the watch before it."""
    original = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        if data.get("init_main_from_path") == os.path.normpath(script):
            del data["init_main_from_path"]
            data["init_main_from_name"] = _AGAIN
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data


# ------------------------------------------------------------------ how it ended


def _tell(error: BaseException, script: str) -> None:
    """Tell the run, then end as the interpreter would; never returns."""
    trimmed = _below(error.__traceback__)
    error.with_traceback(trimmed)
    if isinstance(error, SystemExit):
        if error.code not in (None, 0):
            channel.tell(channel.Ended(_described(error, script)))
        sys.exit(error.code)
    channel.tell(channel.Ended(_described(error, script)))
    sys.excepthook(type(error), error, trimmed)
    sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _below(trace: TracebackType | None) -> TracebackType | None:
    """Without this file's own frames at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _described(error: BaseException, script: str) -> ErrorInfo:
    info = failure.describe(error)
    if isinstance(getattr(error, "info", None), ErrorInfo):
        # another process's: its line says more, the way to it in the script comes after
        way = "".join(traceback.format_exception(error))
        return dataclasses.replace(info, traceback=f"{info.traceback}\n{way}"[-200_000:])
    return dataclasses.replace(info, where=_where(error, script) or info.where)


def _where(error: BaseException, script: str) -> Where | None:
    """The innermost line of the script, or of what lies beside it."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = os.path.join(os.path.dirname(script), "")
    mine = [f for f in frames if f.filename == script]
    near = [f for f in frames if f.filename.startswith(folder) and "-packages" not in f.filename]
    for found in (near, mine):
        if found:
            last = found[-1]
            return Where(last.filename, last.lineno or 0, last.name, last.line or "")
    return None


if __name__ == "__main__":
    # by its own name: what the patches import must not be a second copy of this file
    from eagle3_agent.worker.script import bootstrap

    bootstrap.main()
