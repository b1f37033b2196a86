"""Sample files of a round: counted, synced, removed."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def emptied(path: str) -> Path:
    """The folder, made and empty."""
    folder = Path(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def size(folder: Path, pattern: str, count: int) -> int:
    """Bytes of the files; raises RuntimeError unless there are ``count``."""
    found = [p.stat().st_size for p in folder.glob(pattern)]
    if len(found) != count:
        raise RuntimeError(f"{len(found)} of {count} files in {folder}")
    return sum(found)


def sync(folder: Path, pattern: str, threads: int = 8) -> None:
    """Have every file, and the names in the folder, on the disk."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_sync_one, folder.glob(pattern)))
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
