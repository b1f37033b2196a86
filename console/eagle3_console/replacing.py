"""Put a file in the place of another: all of it or nothing, also where two write at once."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write beside ``path``, then rename; its folder must be there.  Raises OSError.

    ``durable`` syncs the content first, so that a power cut leaves the old file or the new one.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
