"""What the machine can do at most: matrix products of the model's dtype, and files synced."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import files
from .spec import Round, Spec, rows
from .versions import versions


class Matmul:
    """Floating-point operations a second of large products: ``extra["flops"]``."""

    def __init__(self, spec: Spec) -> None:
        import torch

        self._torch: Any = torch
        self._cuda = torch.cuda.is_available()
        size = 8192 if self._cuda else 1536
        where = "cuda" if self._cuda else "cpu"
        kind = getattr(torch, spec.dtype)
        self._a = torch.randn(size, size, device=where).to(kind)
        self._b = torch.randn(size, size, device=where).to(kind)
        self._size = size
        self._times(2)
        self.about = versions()

    def _times(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self._a @ self._b
        if self._cuda:
            self._torch.cuda.synchronize()
        return time.perf_counter() - began

    def round(self) -> Round:
        count = 50 if self._cuda else 4
        seconds = self._times(count)
        return Round(0, seconds, extra={"flops": 2 * self._size**3 * count / seconds})

    def close(self) -> None:
        pass


class Disk:
    """Files of the same sizes by as many threads: write, fsync, rename, and nothing else."""

    def __init__(self, spec: Spec) -> None:
        import json

        from eagle3_agent.worker.writing import bounds

        config = json.loads((Path(spec.model) / "config.json").read_bytes())
        width = len(spec.layers) * int(config["hidden_size"])
        width *= 4 if spec.dtype == "float32" else 2
        self._sizes = [len(row) * width for row in rows(spec.data)]
        self._threads = spec.threads or bounds.threads()
        self._out = spec.out
        self._bytes = os.urandom(1 << 20) * (max(self._sizes) // (1 << 20) + 1)
        self.about = {"threads": self._threads}

    def round(self) -> Round:
        folder = files.emptied(self._out)
        began = time.perf_counter()
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda i: self._one(folder, i), range(len(self._sizes))))
        seconds = time.perf_counter() - began
        files.emptied(self._out)
        return Round(0, seconds, 0.0, seconds, sum(self._sizes), {"threads": self._threads})

    def _one(self, folder: Path, index: int) -> None:
        temporary = folder / f".{index}.part"
        part = memoryview(self._bytes)[: self._sizes[index]]
        with open(temporary, "wb", buffering=0) as file:
            while part:
                part = part[file.write(part) :]
            os.fsync(file.fileno())
        os.rename(temporary, folder / f"{index}.bin")

    def close(self) -> None:
        pass
