"""Hosts with GPUs that are not there: a C double of ``libnvidia-ml.so.1`` for the real pynvml.

``build`` compiles it, ``environment`` makes the variables under which a child
process sees the host of a scenario.  Every GPU's name begins with SIMULATED.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

Scenario = Literal["healthy", "lost", "not-loaded", "mismatch", "hang", "init-hangs"]

SOURCE = Path(__file__).with_name("nvml_double.c")

#: Bytes that memory version 1 counts as used and version 2 does not.
RESERVE = 615 * 1024 * 1024

#: Bytes of one simulated GPU.
TOTAL = 97887 * 1024 * 1024

_SAYS: dict[str, str] = {
    "healthy": "",
    "lost": "lost=3\n",
    "not-loaded": "init=not-loaded\n",
    "mismatch": "init=mismatch\n",
    "hang": "hang=5\n",
    "init-hangs": "init=hang\n",
}


def build(folder: Path) -> Path:
    """Compile the double into ``folder``; returns the library.  Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE],
        check=True,
    )
    return library


def environment(
    library: Path,
    scenario: Scenario = "healthy",
    *,
    gpus: int = 8,
    processes: Iterable[tuple[int, int, int]] = (),
    busy: bool = False,
    says: Iterable[str] = (),
    name: str = "nvml.conf",
) -> dict[str, str]:
    """Variables of a child that shall see this host.  ``processes``: (GPU, pid, MiB).

    ``says`` are more lines of the double's file, as its head explains them:
    ``value=3:throttle:64``, ``stall=5:nvmlDeviceGetName``, ``library=570.1``.

    The host is written beside the library as ``name`` and read at every call: call this again
    to change the host under a running child.
    """
    config = library.with_name(name)
    fresh = library.with_name(f"{name}.new")
    lines = [f"gpus={gpus}\n", f"busy={int(busy)}\n", _SAYS[scenario]]
    lines += [f"process={gpu}:{pid}:{mib}\n" for gpu, pid, mib in processes]
    lines += [f"{line}\n" for line in says]
    fresh.write_text("".join(lines))
    os.replace(fresh, config)
    return {"LD_LIBRARY_PATH": str(library.parent), "NVML_DOUBLE": str(config)}
