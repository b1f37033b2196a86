"""``torch.save`` into a sample's name, in the script's process: complete or absent.

The library's scripts write straight to ``data_{i}.pt``.  A script that is killed leaves a short
file there, which its own resume counts as done, and which a trainer reads.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.values import PatchFinding
from eagle3_agent.worker import manifest
from eagle3_agent.worker.writing import files

FINDING = PatchFinding(
    patch="script/atomic-save",
    title="Save a sample's file whole or not at all",
    status="needed",
    evidence="torch.save(obj, path) opens the path itself and writes into it",
    symptom="a killed script leaves a truncated data_{i}.pt, which its next start takes for done",
    cause="torch.save writes to the final name",
    change="a path named data_{i}.pt in output.dir is written beside it, synced, then renamed; "
    "every other torch.save is untouched",
    until="never: the script is the user's",
)

_SAMPLE = re.compile(r"data_\d+\.pt")
_MARK = "_eagle3_atomic"


def apply(folder: Path) -> None:
    """Wrap ``torch.save`` for sample files in ``folder``; idempotent."""
    import torch

    if getattr(torch.save, _MARK, False):
        return
    made = _whole(torch.save, os.path.realpath(folder))
    setattr(made, _MARK, True)
    torch.save = torch.serialization.save = made


def _whole(save: Callable[..., Any], folder: str) -> Callable[..., Any]:
    @wraps(save)
    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)):
            return save(obj, f, *args, **kwargs)
        place, name = os.path.split(os.fspath(f))
        if not isinstance(name, str) or not _SAMPLE.fullmatch(name):
            return save(obj, f, *args, **kwargs)
        if os.path.realpath(place) != folder:
            return save(obj, f, *args, **kwargs)
        # two threads that write one name must not share what they write to
        temporary = os.path.join(
            folder, manifest.partial_name(name, os.getpid() + (threading.get_ident() << 32))
        )
        try:
            save(obj, temporary, *args, **kwargs)
            files.sync_file(Path(temporary))
            os.replace(temporary, os.path.join(folder, name))
        except BaseException as error:
            _explain(error, os.path.join(folder, name), temporary)
            raise
        return None

    return saved


def _explain(error: BaseException, path: str, temporary: str) -> None:
    """Remove what was begun.  torch tells of a full disk without saying so."""
    full = not isinstance(error, OSError) and _free(path) < 1 << 20
    try:
        os.unlink(temporary)
    except OSError:
        pass
    if full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from error


def _free(path: str) -> int:
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize
