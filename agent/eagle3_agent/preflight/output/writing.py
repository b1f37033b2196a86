"""The write probe: a hidden file is written, synced, renamed and removed again."""

from __future__ import annotations

import os
import time

_PROBE_BYTES = 64 * 1024


def try_to_write(place: str, make_folder: bool) -> tuple[float, str]:
    """(seconds, "") or (0, what failed).  Whatever was made is removed."""
    name = f".eagle3-preflight-{os.getpid()}"
    folder = os.path.join(place, name) if make_folder else place
    first, second = os.path.join(folder, f"{name}.a"), os.path.join(folder, f"{name}.b")
    step = "no folder can be made in it"
    began = time.monotonic()
    try:
        if make_folder:
            os.mkdir(folder, 0o700)
        step = "no file can be written in it"
        fd = os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(bytes(_PROBE_BYTES))
            while view:
                view = view[os.write(fd, view) :]
            step = "a written file cannot be synced"
            os.fsync(fd)
        finally:
            os.close(fd)
        step = "a file in it cannot be renamed"
        os.rename(first, second)
    except OSError as error:
        where = "" if not make_folder else f" (in {place})"
        return 0.0, f"cannot be written: {step}{where}: {error.strerror or error}"
    finally:
        _remove(first, second, folder if make_folder else "")
    return time.monotonic() - began, ""


def _remove(first: str, second: str, folder: str) -> None:
    for path in (first, second):
        try:
            os.unlink(path)
        except OSError:
            pass  # it was never made
    if folder:
        try:
            os.rmdir(folder)
        except OSError:
            pass  # likewise
